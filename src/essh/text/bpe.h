#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "essh/text/tokenizer.h"

namespace essh {

// Merges the neighbours `left right` into `result`; the rank is the index in the list.
struct BpeMerge {
  TokenId left;
  TokenId right;
  TokenId result;
};

// Scratch of one thread: a cache of word ids, and the lists of the current word.
class BpeScratch {
 public:
  BpeScratch() : cache_(kFirstEntries) {}

 private:
  friend class Bpe;
  // Powers of two. The cache grows to 2 MB with the number of words: most tokenizers encode few.
  static constexpr std::size_t kFirstEntries = 1 << 9;
  static constexpr std::size_t kEntries = 1 << 15;
  static constexpr std::size_t kKeyBytes = 32;
  static constexpr std::size_t kIds = 7;

  // One cache line. A word longer than the key, or with more ids, is not cached; newer words replace older ones.
  struct alignas(64) Entry {
    std::array<std::uint64_t, kKeyBytes / 8> key;
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    std::array<TokenId, kIds> ids;
  };

  // Forgets the words in the cache.
  void grow() {
    words_ = 0;
    cache_.assign(8 * cache_.size(), Entry{});
  }

  std::vector<Entry> cache_;
  std::size_t words_ = 0;  // entries in use
  std::vector<TokenId> ids_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> previous_;
  std::vector<std::uint64_t> sorted_;
  std::vector<std::uint64_t> heap_;
};

// Byte pair encoding of single words. Repeatedly joins the neighbours whose merge has the lowest rank, the leftmost
// first.
class Bpe {
 public:
  // byte_ids[b] is the token of byte b, or -1: such bytes are dropped, as in Hugging Face. Each pair may occur once.
  Bpe(const std::array<TokenId, 256>& byte_ids, std::span<const BpeMerge> merges);

  // Appends the ids of `word`, in O(n log n) for n bytes.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const;
  // The same through the thread's cache; calls `compute(word, ids)` on a miss.
  template <class Compute>
  static void encode_cached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids, Compute&& compute);

 private:
  struct Pair {
    std::uint64_t key = kNoPair;  // left << 32 | right
    std::uint32_t rank = 0;
    TokenId result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static constexpr std::size_t kShortWord = 48;

  const Pair* find(TokenId left, TokenId right) const;
  std::size_t slot(std::uint64_t key) const;
  void encode_short(std::string_view word, std::vector<TokenId>& ids) const;
  void encode_long(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids) const;

  std::array<TokenId, 256> byte_ids_;
  bool no_merges_;
  std::vector<Pair> pairs_;  // open addressing
  std::uint64_t seed_;
  int shift_;
};

namespace detail {
// `count` bytes, 1 to 8, as a number. Faster than a copy of variable length.
inline std::uint64_t load_bytes(const char* bytes, std::size_t count) {
  const auto load = [bytes]<class T>(std::size_t at, T value) {
    std::memcpy(&value, bytes + at, sizeof value);
    return std::uint64_t{value};
  };
  if (count == 8) return load(0, std::uint64_t{});
  if (count >= 4) return load(0, std::uint32_t{}) | load(count - 4, std::uint32_t{}) << 32;
  if (count >= 2) return load(0, std::uint16_t{}) | load(count - 2, std::uint16_t{}) << 16;
  return load(0, std::uint8_t{});
}
}  // namespace detail

template <class Compute>
void Bpe::encode_cached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& ids, Compute&& compute) {
  using Entry = BpeScratch::Entry;
  if (word.size() > BpeScratch::kKeyBytes) {
    compute(word, ids);
    return;
  }
  decltype(Entry::key) key{};
  std::uint64_t hash = word.size();
  for (std::size_t i = 0; 8 * i < word.size(); ++i) {
    key[i] = detail::load_bytes(word.data() + 8 * i, std::min<std::size_t>(8, word.size() - 8 * i));
    hash = (hash ^ key[i]) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  Entry& entry = scratch.cache_[hash & (scratch.cache_.size() - 1)];
  if (entry.length == word.size() && entry.key == key) {
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return;
  }
  const std::size_t begin = ids.size();
  compute(word, ids);
  const std::size_t count = ids.size() - begin;
  if (count > BpeScratch::kIds) return;
  const bool fresh = entry.length == 0;
  entry.key = key;
  entry.length = static_cast<std::uint8_t>(word.size());
  entry.count = static_cast<std::uint8_t>(count);
  std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(begin), count, entry.ids.begin());
  if (fresh && ++scratch.words_ > scratch.cache_.size() / 2 && scratch.cache_.size() < BpeScratch::kEntries)
    scratch.grow();
}

}  // namespace essh
