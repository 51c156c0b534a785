#include "essh/text/bpe.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <set>

#include "essh/base/rng.h"

namespace essh {
namespace {

// Bytes a, b, c have the ids 0, 1, 2; merges have ids from 3 on.
std::array<TokenId, 256> three_bytes() {
  std::array<TokenId, 256> ids;
  ids.fill(-1);
  ids['a'] = 0;
  ids['b'] = 1;
  ids['c'] = 2;
  return ids;
}

// The definition of BPE: join the pair of lowest rank, the leftmost first, until none is left.
std::vector<TokenId> by_definition(std::string_view word, const std::vector<BpeMerge>& merges) {
  std::vector<TokenId> symbols;
  for (const char c : word) {
    if (c >= 'a' && c <= 'c') symbols.push_back(c - 'a');
  }
  std::map<std::pair<TokenId, TokenId>, std::size_t> ranks;
  for (std::size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
  while (true) {
    std::size_t best = merges.size(), place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        place = i;
      }
    }
    if (best == merges.size()) return symbols;
    symbols[place] = merges[best].result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

std::vector<BpeMerge> random_merges(Rng& rng, std::size_t count) {
  std::vector<std::string> tokens = {"a", "b", "c"};
  std::map<std::string, TokenId> ids = {{"a", 0}, {"b", 1}, {"c", 2}};
  std::set<std::pair<TokenId, TokenId>> seen;
  std::vector<BpeMerge> merges;
  while (merges.size() < count) {
    const auto left = static_cast<TokenId>(rng.below(tokens.size()));
    const auto right = static_cast<TokenId>(rng.below(tokens.size()));
    if (!seen.emplace(left, right).second) continue;
    const std::string both = tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
    const auto [entry, fresh] = ids.emplace(both, static_cast<TokenId>(tokens.size()));
    if (fresh) tokens.push_back(both);
    merges.push_back({left, right, entry->second});
  }
  // Ranks not ordered by length, as tiktoken's may be.
  for (std::size_t i = merges.size(); i > 1; --i) std::swap(merges[i - 1], merges[rng.below(i)]);
  return merges;
}

TEST(Bpe, ShortAndLongWordsFollowTheDefinition) {
  Rng rng(5);
  for (int round = 0; round < 60; ++round) {
    const auto merges = random_merges(rng, 1 + rng.below(40));
    const Bpe bpe(three_bytes(), merges);
    BpeScratch scratch;
    for (int word = 0; word < 40; ++word) {
      std::string text;
      const std::uint64_t length = rng.below(word % 2 == 0 ? 49 : 300);
      for (std::uint64_t i = 0; i < length; ++i) text.push_back("abcx"[rng.below(rng.below(2) == 0 ? 2 : 4)]);
      std::vector<TokenId> ids;
      bpe.encode(text, scratch, ids);
      ASSERT_EQ(ids, by_definition(text, merges)) << text;
    }
  }
}

TEST(Bpe, CacheGivesWhatWasComputed) {
  Rng rng(6);
  const auto merges = random_merges(rng, 30);
  const Bpe bpe(three_bytes(), merges);
  BpeScratch scratch;
  int computed = 0;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t length = 0; length < 60; ++length) {
      const std::string text = std::string(length, 'a') + "b";
      std::vector<TokenId> ids = {7};
      Bpe::encode_cached(text, scratch, ids, [&](std::string_view word, std::vector<TokenId>& out) {
        ++computed;
        bpe.encode(word, scratch, out);
      });
      auto expected = by_definition(text, merges);
      expected.insert(expected.begin(), 7);
      ASSERT_EQ(ids, expected);
    }
  }
  EXPECT_LT(computed, 3 * 60);
}

TEST(Bpe, CacheGrowsWithTheWords) {
  BpeScratch scratch;
  constexpr int kWords = 8000;
  int computed = 0;
  for (int round = 0; round < 3; ++round) {
    computed = 0;
    for (int number = 0; number < kWords; ++number) {
      std::vector<TokenId> ids;
      Bpe::encode_cached(std::to_string(number), scratch, ids, [&](std::string_view, std::vector<TokenId>& out) {
        ++computed;
        out.push_back(number);
      });
      ASSERT_EQ(ids, std::vector<TokenId>{number});
    }
  }
  // The cache began with 512 entries.
  EXPECT_LT(computed, kWords / 2);
}

TEST(Bpe, MegabytesOfOneCharacterTakeNoLongerPerByte) {
  // Doubling merges, and three-letter merges that make most candidates stale.
  const std::vector<BpeMerge> merges = {{0, 0, 3}, {3, 3, 4}, {3, 0, 5}, {4, 4, 6}, {4, 0, 7}, {6, 6, 8}};
  const Bpe bpe(three_bytes(), merges);
  BpeScratch scratch;
  std::vector<TokenId> ids;
  const std::clock_t start = std::clock();  // processor time: other programs do not count
  bpe.encode(std::string((4 << 20) + 1, 'a'), scratch, ids);
  EXPECT_EQ(ids.size(), (4u << 20) / 16 + 1);
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 60);
}

}  // namespace
}  // namespace essh
