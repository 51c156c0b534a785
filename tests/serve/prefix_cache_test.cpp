#include "essh/serve/prefix_cache.h"

#include <gtest/gtest.h>

namespace essh::serve {
namespace {

const Capacity kSmall{1, 2}, kLarge{2, 2};

std::shared_ptr<PrefixState> state(float mark, std::size_t bytes = 0) {
  auto made = std::make_shared<PrefixState>();
  made->logits = {mark};
  if (bytes > 0) made->state.parts.emplace_back(bytes);
  return made;
}

TEST(PrefixCache, FindsTheLongestBeginning) {
  PrefixCache cache(1 << 20);
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  EXPECT_EQ(cache.find(kSmall, "", tokens).tokens, 0u);
  cache.put(kSmall, "", std::vector<TokenId>{1, 2}, state(2));
  cache.put(kSmall, "", std::vector<TokenId>{1, 2, 3}, state(3));
  cache.put(kSmall, "", std::vector<TokenId>{1, 2, 4, 4}, state(4));
  const auto found = cache.find(kSmall, "", tokens);
  ASSERT_EQ(found.tokens, 3u);
  EXPECT_EQ(found.state->logits[0], 3);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{1, 2}).tokens, 2u);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{1}).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{2, 2, 3}).tokens, 0u);
}

TEST(PrefixCache, CapacitiesAndSaltsAreApart) {
  PrefixCache cache(1 << 20);
  const std::vector<TokenId> tokens = {1, 2};
  cache.put(kSmall, "a", tokens, state(1));
  EXPECT_EQ(cache.find(kSmall, "a", tokens).tokens, 2u);
  EXPECT_EQ(cache.find(kLarge, "a", tokens).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "", tokens).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "b", tokens).tokens, 0u);
}

TEST(PrefixCache, DropsTheLeastRecentlyUsedBeyondItsBudget) {
  PrefixCache cache(3000);
  const auto tokens = [](TokenId id) { return std::vector<TokenId>{id}; };
  cache.put(kSmall, "", tokens(1), state(1, 900));
  cache.put(kSmall, "", tokens(2), state(2, 900));
  cache.put(kSmall, "", tokens(3), state(3, 900));
  cache.find(kSmall, "", tokens(1));
  cache.put(kSmall, "", tokens(4), state(4, 900));
  EXPECT_LE(cache.bytes(), 3000u);
  EXPECT_EQ(cache.find(kSmall, "", tokens(1)).tokens, 1u);
  EXPECT_EQ(cache.find(kSmall, "", tokens(2)).tokens, 0u);
  cache.put(kSmall, "", tokens(5), state(5, 5000));  // never fits
  EXPECT_EQ(cache.find(kSmall, "", tokens(5)).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "", tokens(4)).tokens, 1u);
  // The same tokens again replace, and count once.
  const auto before = cache.bytes();
  cache.put(kSmall, "", tokens(4), state(6, 900));
  EXPECT_EQ(cache.bytes(), before);
  EXPECT_EQ(cache.find(kSmall, "", tokens(4)).state->logits[0], 6);
}

}  // namespace
}  // namespace essh::serve
