#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/text/tokenizer.h"

namespace essh::serve {

// Packed states of prompts and texts, in memory of the engine's device. Beyond a budget in bytes the least recently
// used states are dropped. For one model and precision; keyed by capacity, salt and tokens.
//
// One thread calls find() and put(). When an allocation on the device fails, all states are dropped, their memory is
// freed and the budget is halved, so that the cache yields before a request fails.
class PrefixCache {
 public:
  PrefixCache(std::size_t budget, Device device);

  struct Found {
    std::size_t tokens = 0;                    // 0: nothing found
    PackedState state = {};                    // valid until the next put()
    std::shared_ptr<Buffer> memory = nullptr;  // holds `state`
  };
  // The longest cached prefix of `tokens` under this salt.
  Found find(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens);
  // Stores the state after `tokens`; `write` copies its `bytes` to the given device address. Does nothing if the state
  // is larger than the budget.
  void put(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens, std::size_t bytes,
           const std::function<void(std::byte*)>& write);

  bool enabled() const { return budget_ > 0; }
  // Bytes of all states with their keys.
  std::size_t bytes() const;

 private:
  struct Entry {
    std::uint64_t hash = 0;
    Capacity capacity = {};
    std::string salt = {};
    std::vector<TokenId> tokens = {};
    std::size_t begin = 0, room = 0;  // in memory_
    std::size_t bytes = 0;            // total
  };
  using Place = std::list<Entry>::iterator;

  void drop(Place entry);
  bool take(Entry& entry);
  bool give_way();
  std::shared_ptr<Buffer> memory_for(std::size_t bytes);

  const Device device_;
  mutable std::mutex mutex_;
  std::atomic<std::size_t> budget_;
  std::size_t bytes_ = 0;
  std::shared_ptr<Buffer> memory_;           // budget_ bytes, allocated by the first put()
  std::map<std::size_t, std::size_t> free_;  // of memory_: offset and size
  std::list<Entry> entries_;                 // most recently used first
  std::unordered_map<std::uint64_t, Place> by_hash_;
  std::map<std::size_t, std::size_t> lengths_;  // number of entries by length
  Reclaimer reclaimer_;
};

}  // namespace essh::serve
