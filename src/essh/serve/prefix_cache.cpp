#include "essh/serve/prefix_cache.h"

#include <algorithm>

#include "essh/base/log.h"
#include "essh/base/units.h"

namespace essh::serve {
namespace {

constexpr std::size_t kAlignment = 256;

// Bijective in 64 bits. The hash of a prefix does not depend on what follows.
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

PrefixCache::PrefixCache(std::size_t budget, Device device)
    : device_(device), budget_(budget), reclaimer_(device, [this] { return give_way(); }) {}

std::size_t PrefixCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

PrefixCache::Found PrefixCache::find(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens) {
  const std::lock_guard lock(mutex_);
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
  return {.tokens = best->tokens.size(),
          .state = {.capacity = capacity,
                    .position = std::ssize(best->tokens),
                    .data = memory_->as<std::byte>() + best->begin},
          .memory = memory_};
}

void PrefixCache::put(Capacity capacity, const std::string& salt, std::span<const TokenId> tokens, std::size_t bytes,
                      const std::function<void(std::byte*)>& write) {
  Entry entry{.hash = start_hash(capacity, salt), .capacity = capacity, .salt = salt};
  entry.room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  entry.bytes = entry.room + tokens.size_bytes() + salt.size();
  if (entry.bytes > budget_ || tokens.empty()) return;
  // The reference keeps the memory alive if give_way() runs in another thread.
  const auto memory = memory_for(entry.room);
  if (!memory) return;
  for (const auto token : tokens) entry.hash = mix(entry.hash, static_cast<std::uint64_t>(token));
  entry.tokens.assign(tokens.begin(), tokens.end());
  std::size_t begin = 0;
  {
    const std::lock_guard lock(mutex_);
    if (memory != memory_ || entry.bytes > budget_) return;
    if (const auto known = by_hash_.find(entry.hash); known != by_hash_.end()) drop(known->second);
    while (bytes_ + entry.bytes > budget_ || !take(entry)) {
      if (entries_.empty()) return;
      drop(std::prev(entries_.end()));
    }
    begin = entry.begin;
    bytes_ += entry.bytes;
    ++lengths_[tokens.size()];
    entries_.push_front(std::move(entry));
    by_hash_[entries_.front().hash] = entries_.begin();
  }
  write(memory->as<std::byte>() + begin);
}

// Allocated once for all states, so that storing a state neither allocates nor waits for the device.
std::shared_ptr<Buffer> PrefixCache::memory_for(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (memory_) return memory_;
  }
  // Without the lock, because a failed allocation calls give_way().
  for (std::size_t size = budget_; size >= bytes && size > 0; size /= 2) {
    try {
      auto memory = std::make_shared<Buffer>(device_, size / kAlignment * kAlignment, "states of known prompts");
      const std::lock_guard lock(mutex_);
      budget_ = std::min(budget_.load(), size);
      memory_ = std::move(memory);
      free_ = {{0, memory_->bytes()}};
      return memory_;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::OutOfMemory) throw;
    }
  }
  log::warn("serve: there is no memory for the prefix cache: every prompt is computed anew");
  budget_ = 0;
  return nullptr;
}

// First fit.
bool PrefixCache::take(Entry& entry) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [begin, size] = *range;
    if (size < entry.room) continue;
    free_.erase(range);
    if (size > entry.room) free_[begin + entry.room] = size - entry.room;
    entry.begin = begin;
    return true;
  }
  return false;
}

void PrefixCache::drop(Place entry) {
  bytes_ -= entry->bytes;
  by_hash_.erase(entry->hash);
  const auto length = lengths_.find(entry->tokens.size());
  if (--length->second == 0) lengths_.erase(length);
  // Merges the range with its free neighbours.
  if (entry->room > 0) {
    const auto range = free_.emplace(entry->begin, entry->room).first;
    if (const auto next = std::next(range); next != free_.end() && range->first + range->second == next->first) {
      range->second += next->second;
      free_.erase(next);
    }
    if (range != free_.begin()) {
      if (const auto before = std::prev(range); before->first + before->second == range->first) {
        before->second += range->second;
        free_.erase(range);
      }
    }
  }
  entries_.erase(entry);
}

bool PrefixCache::give_way() {
  // Never blocks: the holder of the lock may wait for this thread. Without the lock nothing is freed and the allocation
  // fails.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !memory_) return false;
  entries_.clear();
  by_hash_.clear();
  lengths_.clear();
  free_.clear();
  bytes_ = 0;
  memory_.reset();
  budget_ = budget_ / 2;
  log::warn("serve: memory is short: the prefix cache drops its states and keeps to {} from now on",
            format_bytes(static_cast<double>(budget_)));
  return true;
}

}  // namespace essh::serve
