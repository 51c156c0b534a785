#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/text/tokenizer.h"

namespace essh::serve {

// The state after some tokens and, at the end of a prompt, the logits there.
struct PrefixState {
  StateSnapshot state;
  std::vector<float> logits = {};
};

// States of prompts and texts that were computed, the least recently used ones dropped beyond a budget in bytes. Of one
// model and precision; keyed by capacity, salt and tokens. One thread.
class PrefixCache {
 public:
  explicit PrefixCache(std::size_t budget) : budget_(budget) {}

  struct Found {
    std::size_t tokens = 0;
    std::shared_ptr<const PrefixState> state = nullptr;
  };
  // The longest beginning of `tokens` that is known under this salt.
  Found find(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens);
  void put(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens,
           std::shared_ptr<const PrefixState> state);

  bool enabled() const { return budget_ > 0; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::uint64_t hash;
    Capacity capacity;
    std::string salt;
    std::vector<TokenId> tokens;
    std::shared_ptr<const PrefixState> state;
    std::size_t bytes;
  };
  using Place = std::list<Entry>::iterator;
  void drop(Place entry);

  std::size_t budget_, bytes_ = 0;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::uint64_t, Place> by_hash_;
  std::map<std::size_t, std::size_t> lengths_;  // of the entries, with their number
};

}  // namespace essh::serve
