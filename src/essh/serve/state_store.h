#pragma once
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/text/tokenizer.h"

namespace essh::serve {

// The state after a text, from which another request continues.
struct SavedState {
  Tier tier = {};
  StateSnapshot state = {};
  std::vector<TokenId> pending = {};  // drawn but not fed
  SamplerState sampler = {};
};

struct StateStoreOptions {
  std::filesystem::path folder = {};
  std::uint64_t quota = std::uint64_t{1} << 30;  // total bytes of all files
  std::string model = {};                        // hash of the model
  std::string precision = {};
};

// States in files of one folder, under names chosen by the store. A state is readable only by its owner, and only with
// the model and precision that wrote it. Callable from any thread.
class StateStore {
 public:
  struct Receipt {
    std::string id = {};  // empty if saving failed
    std::uint64_t bytes = 0;
    std::string error = {};
  };

  // Finds the states already in the folder.
  explicit StateStore(StateStoreOptions options);
  ~StateStore() { stop(); }

  // Writes on the store's thread and calls `done` there.
  void save(SavedState state, std::string owner, std::function<void(Receipt)> done);
  // 404 for an id that does not belong to this owner; 409 for a damaged state or one of another model or precision.
  SavedState load(const std::string& id, const std::string& owner) const;
  void remove(const std::string& id, const std::string& owner);
  bool full() const;
  // Writes the waiting states; `done` is not called afterwards.
  void stop();

 private:
  struct Order {
    SavedState state;
    std::string owner;
    std::function<void(Receipt)> done;
  };
  void work();
  Receipt write(const SavedState& state, const std::string& owner);
  std::filesystem::path path_of(const std::string& id) const;

  StateStoreOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Order> orders_;
  std::uint64_t bytes_ = 0;
  bool stopping_ = false;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace essh::serve
