#include "essh/text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <random>

#include "essh/base/error.h"

namespace essh {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
// Buffers grown for a longer word are freed after it.
constexpr std::size_t kKeptSymbols = 1 << 20;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::array<TokenId, 256>& byte_ids, std::span<const BpeMerge> merges)
    // A random seed prevents files crafted to make pairs collide; no result depends on it.
    : byte_ids_(byte_ids), no_merges_(merges.empty()), seed_(std::random_device{}()) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2));
  shift_ = 64 - std::countr_zero(slots);
  pairs_.resize(slots);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    std::size_t at = slot(key);
    while (pairs_[at].key != kNoPair) {
      ESSH_ASSERT(pairs_[at].key != key);
      at = (at + 1) & (slots - 1);
    }
    pairs_[at] = {key, static_cast<std::uint32_t>(rank), merges[rank].result};
  }
}

std::size_t Bpe::slot(std::uint64_t key) const {
  std::uint64_t hash = (key ^ seed_) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ (hash >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<std::size_t>(hash >> shift_);
}

const Bpe::Pair* Bpe::find(TokenId left, TokenId right) const {
  const std::uint64_t key = pair_key(left, right);
  for (std::size_t at = slot(key);; at = (at + 1) & (pairs_.size() - 1)) {
    if (pairs_[at].key == key) return &pairs_[at];
    if (pairs_[at].key == kNoPair) return nullptr;
  }
}

void Bpe::encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const {
  if (no_merges_) {
    for (const char c : word) {
      const TokenId id = byte_ids_[static_cast<std::uint8_t>(c)];
      if (id >= 0) ids.push_back(id);
    }
  } else if (word.size() <= kShortWord) {
    encode_short(word, ids);
  } else {
    encode_long(word, scratch, ids);
  }
}

void Bpe::encode_short(std::string_view word, std::vector<TokenId>& ids) const {
  std::array<TokenId, kShortWord> symbols;
  std::array<std::uint32_t, kShortWord> ranks;  // rank of the pair starting here
  std::array<TokenId, kShortWord> results;
  std::size_t count = 0;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<std::uint8_t>(c)];
    if (id >= 0) symbols[count++] = id;
  }
  const auto look_up = [&](std::size_t at) {
    const Pair* pair = find(symbols[at], symbols[at + 1]);
    ranks[at] = pair ? pair->rank : kNone;
    results[at] = pair ? pair->result : -1;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    symbols[best] = results[best];
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(ranks.begin() + best + 2, ranks.begin() + count, ranks.begin() + best + 1);
    std::copy(results.begin() + best + 2, results.begin() + count, results.begin() + best + 1);
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
}

void Bpe::encode_long(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const {
  auto& symbols = scratch.ids_;
  auto& next = scratch.next_;
  auto& previous = scratch.previous_;
  auto& sorted = scratch.sorted_;
  auto& heap = scratch.heap_;
  symbols.clear();
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<std::uint8_t>(c)];
    if (id >= 0) symbols.push_back(id);
  }
  const auto count = static_cast<std::uint32_t>(symbols.size());
  next.resize(count);
  previous.resize(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }

  // Candidates are rank << 32 | position, so they sort by rank, then position. The initial ones are sorted once, which
  // is cheap for a long repetition of one character; only later ones use the heap. A stale candidate is detected by its
  // rank.
  sorted.clear();
  heap.clear();
  const auto candidate = [&](std::uint32_t at, std::vector<std::uint64_t>& list) {
    const Pair* pair = find(symbols[at], symbols[next[at]]);
    if (pair == nullptr) return false;
    list.push_back(std::uint64_t{pair->rank} << 32 | at);
    return true;
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i) candidate(i, sorted);
  std::sort(sorted.begin(), sorted.end());
  const auto push = [&](std::uint32_t at) {
    if (candidate(at, heap)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::size_t cursor = 0; cursor < sorted.size() || !heap.empty();) {
    std::uint64_t top;
    if (heap.empty() || (cursor < sorted.size() && sorted[cursor] < heap.front())) {
      top = sorted[cursor++];
    } else {
      top = heap.front();
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      heap.pop_back();
    }
    const auto at = static_cast<std::uint32_t>(top);
    if (symbols[at] < 0 || next[at] == kNone) continue;
    const std::uint32_t right = next[at];
    const Pair* pair = find(symbols[at], symbols[right]);
    if (pair == nullptr || pair->rank != top >> 32) continue;
    symbols[at] = pair->result;
    symbols[right] = -1;
    next[at] = next[right];
    if (next[at] != kNone) previous[next[at]] = at;
    if (previous[at] != kNone) push(previous[at]);
    if (next[at] != kNone) push(at);
  }
  for (const TokenId id : symbols) {
    if (id >= 0) ids.push_back(id);
  }
  if (count > kKeptSymbols) {
    for (auto* list : {&next, &previous}) std::vector<std::uint32_t>().swap(*list);
    for (auto* list : {&sorted, &heap}) std::vector<std::uint64_t>().swap(*list);
    std::vector<TokenId>().swap(symbols);
  }
}

}  // namespace essh
