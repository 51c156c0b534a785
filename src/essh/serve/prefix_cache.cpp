#include "essh/serve/prefix_cache.h"

#include <algorithm>

namespace essh::serve {
namespace {

// A bijective mixing of 64 bits: equal beginnings have equal hashes, whatever follows.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

std::uint64_t start_hash(Capacity capacity, const std::string& salt) {
  auto hash = mix(mix(1, static_cast<std::uint64_t>(capacity.channels)), static_cast<std::uint64_t>(capacity.ffn));
  for (const char c : salt) hash = mix(hash, static_cast<unsigned char>(c) + 1u);
  return mix(hash, salt.size());
}

}  // namespace

PrefixCache::Found PrefixCache::find(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens) {
  if (entries_.empty()) return {};
  auto hash = start_hash(capacity, salt);
  auto length = lengths_.begin();
  Place best = entries_.end();
  for (std::size_t i = 0; i < tokens.size() && length != lengths_.end(); ++i) {
    hash = mix(hash, static_cast<std::uint64_t>(tokens[i]));
    if (i + 1 != length->first) continue;
    ++length;
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) continue;
    const auto& entry = *found->second;
    if (entry.capacity == capacity && entry.salt == salt && std::ranges::equal(entry.tokens, tokens.first(i + 1)))
      best = found->second;
  }
  if (best == entries_.end()) return {};
  entries_.splice(entries_.begin(), entries_, best);
  return {best->tokens.size(), best->state};
}

void PrefixCache::put(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens,
                      std::shared_ptr<const PrefixState> state) {
  const auto bytes = state->state.bytes() + state->logits.size() * sizeof(float) + tokens.size_bytes() + salt.size();
  if (bytes > budget_ || tokens.empty()) return;
  auto hash = start_hash(capacity, salt);
  for (const auto token : tokens) hash = mix(hash, static_cast<std::uint64_t>(token));
  if (const auto known = by_hash_.find(hash); known != by_hash_.end()) drop(known->second);
  while (bytes_ + bytes > budget_) drop(std::prev(entries_.end()));
  entries_.push_front({hash, capacity, salt, {tokens.begin(), tokens.end()}, std::move(state), bytes});
  by_hash_[hash] = entries_.begin();
  ++lengths_[tokens.size()];
  bytes_ += bytes;
}

void PrefixCache::drop(Place entry) {
  bytes_ -= entry->bytes;
  by_hash_.erase(entry->hash);
  const auto length = lengths_.find(entry->tokens.size());
  if (--length->second == 0) lengths_.erase(length);
  entries_.erase(entry);
}

}  // namespace essh::serve
