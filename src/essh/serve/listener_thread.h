#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "essh/serve/listener.h"

namespace essh::serve {

// The listener of a job.
struct Recipient {
  std::shared_ptr<Listener> listener;
  // Set after a call has thrown and failed() was called; no call follows.
  std::atomic<bool> deaf{false};
};

// One call to a listener.
struct Notice {
  std::shared_ptr<Recipient> to = nullptr;
  std::size_t text = 0;
  TokenId token = -1;
  bool shown = true;
  std::function<void(Listener&)> call = nullptr;  // if set, called instead of token()
  std::int64_t texts = 0, tokens = 0;             // that end with this call
};

// Calls listeners on its own thread, in the order of notices: turning tokens into text and JSON takes longer than a
// step on a GPU, and the next step runs meanwhile. Drops tokens for listeners that are gone.
class ListenerThread {
 public:
  // `settled` is called after each notice that ends texts.
  explicit ListenerThread(std::function<void(std::int64_t texts, std::int64_t tokens)> settled);
  // Makes all remaining calls.
  ~ListenerThread();

  // One thread adds notices and hands them over once per step. hand_over() blocks while this thread is two steps
  // behind, which bounds the number of notices.
  void add(Notice notice) { collected_.push_back(std::move(notice)); }
  void hand_over();
  // Calls the listener in this thread. Returns the result of token(); true for other calls and for deaf recipients.
  bool tell(const Notice& notice);
  // Returns after all calls are made. No notice may be added afterwards.
  void finish();

 private:
  void work();

  std::function<void(std::int64_t, std::int64_t)> settled_;
  std::vector<Notice> collected_;
  std::mutex mutex_;
  std::condition_variable wake_, taken_;
  std::vector<std::vector<Notice>> steps_;
  std::vector<Notice> spare_;  // reused memory of a delivered step
  bool finishing_ = false;
  std::thread thread_;
};

}  // namespace essh::serve
