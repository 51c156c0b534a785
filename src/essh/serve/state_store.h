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

// Where a text has got to, so that another request can go on.
struct SavedState {
  Tier tier = {};
  StateSnapshot state = {};
  std::vector<TokenId> pending = {};  // drawn and not fed yet
  SamplerState sampler = {};
};

struct StateStoreOptions {
  std::filesystem::path folder = {};
  std::uint64_t quota = std::uint64_t{1} << 30;  // bytes of all files
  std::string model = {};                        // its hash
  std::string precision = {};
};

// States in files of one folder, under names that the store chooses. A state can be read by its owner alone, and by the
// model and precision that wrote it. May be used from any thread.
class StateStore {
 public:
  struct Receipt {
    std::string id = {};  // empty if it could not be saved
    std::uint64_t bytes = 0;
    std::string error = {};
  };

  // Takes over the states that are in the folder.
  explicit StateStore(StateStoreOptions options);
  ~StateStore() { stop(); }

  // Writes on a thread of the store and tells `done` there.
  void save(SavedState state, std::string owner, std::function<void(Receipt)> done);
  // 404 for an id that is not one of this owner's, 409 for a state of another model or precision, or a damaged one.
  SavedState load(const std::string& id, const std::string& owner) const;
  void remove(const std::string& id, const std::string& owner);
  bool full() const;
  // Writes what is waiting; nothing is told afterwards.
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
