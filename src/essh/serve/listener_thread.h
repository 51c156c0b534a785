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

// Whom notices go to.
struct Recipient {
  std::shared_ptr<Listener> listener;
  // A call has thrown, and failed() has told so: no call follows.
  std::atomic<bool> deaf{false};
};

// One call of a listener.
struct Notice {
  std::shared_ptr<Recipient> to = nullptr;
  std::size_t text = 0;
  TokenId token = -1;
  bool shown = true;
  std::function<void(Listener&)> call = nullptr;  // instead of token() without log-probabilities
  std::int64_t texts = 0, tokens = 0;             // that have ended with this call
};

// Calls listeners in the order of notices on a thread of its own: turning tokens into text and JSON takes longer than
// a GPU takes for a step, and the next step runs meanwhile. Drops tokens of listeners that are gone.
class ListenerThread {
 public:
  // `settled` hears what has ended, after the call that said so.
  explicit ListenerThread(std::function<void(std::int64_t texts, std::int64_t tokens)> settled);
  // Makes the calls that are left.
  ~ListenerThread();

  // One thread adds notices and hands them over, a step at a time. hand_over() waits while the thread is two steps
  // behind, so that notices stay few.
  void add(Notice notice) { collected_.push_back(std::move(notice)); }
  void hand_over();
  // Makes the call now. Returns what token() does; true for others and for the deaf.
  bool tell(const Notice& notice);
  // Returns when all calls have been made; none may be added any more.
  void finish();

 private:
  void work();

  std::function<void(std::int64_t, std::int64_t)> settled_;
  std::vector<Notice> collected_;
  std::mutex mutex_;
  std::condition_variable wake_, taken_;
  std::vector<std::vector<Notice>> steps_;
  std::vector<Notice> spare_;  // memory of a step that was told
  bool finishing_ = false;
  std::thread thread_;
};

}  // namespace essh::serve
