#include "essh/serve/prefix_cache.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"

namespace essh::serve {
namespace {

const Capacity kSmall{1, 2}, kLarge{2, 2};

std::size_t held() {
  for (const auto& use : held_memory(Device::Cpu)) {
    if (use.purpose == "states of known prompts") return use.bytes;
  }
  return 0;
}

// Stores a state of `bytes` bytes, all equal to `mark`.
void put(PrefixCache& cache, const std::vector<TokenId>& tokens, int mark, std::size_t bytes = 256,
         Capacity capacity = kSmall, const std::string& salt = "") {
  cache.put(capacity, salt, tokens, bytes,
            [&](std::byte* to) { std::fill_n(to, bytes, static_cast<std::byte>(mark)); });
}

// The mark of a state of `bytes` bytes; -1 if its bytes differ.
int mark_of(const PrefixCache::Found& found, std::size_t bytes = 256) {
  const auto mark = static_cast<int>(found.state.data[0]);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (static_cast<int>(found.state.data[i]) != mark) return -1;
  }
  return mark;
}

TEST(PrefixCache, FindsTheLongestBeginning) {
  PrefixCache cache(1 << 20, Device::Cpu);
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  EXPECT_EQ(cache.find(kSmall, "", tokens).tokens, 0u);
  put(cache, {1, 2}, 2);
  put(cache, {1, 2, 3}, 3);
  put(cache, {1, 2, 4, 4}, 4);
  const auto found = cache.find(kSmall, "", tokens);
  ASSERT_EQ(found.tokens, 3u);
  EXPECT_EQ(mark_of(found), 3);
  EXPECT_EQ(found.state.position, 3);
  EXPECT_EQ(found.state.capacity, kSmall);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{1, 2}).tokens, 2u);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{1}).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{2, 2, 3}).tokens, 0u);
}

TEST(PrefixCache, CapacitiesAndSaltsAreApart) {
  PrefixCache cache(1 << 20, Device::Cpu);
  const std::vector<TokenId> tokens = {1, 2};
  put(cache, tokens, 1, 256, kSmall, "a");
  EXPECT_EQ(cache.find(kSmall, "a", tokens).tokens, 2u);
  EXPECT_EQ(cache.find(kLarge, "a", tokens).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "", tokens).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "b", tokens).tokens, 0u);
}

TEST(PrefixCache, DropsTheLeastRecentlyUsedBeyondItsBudget) {
  PrefixCache cache(4000, Device::Cpu);
  const auto tokens = [](TokenId id) { return std::vector<TokenId>{id}; };
  put(cache, tokens(1), 1, 1000);
  put(cache, tokens(2), 2, 1000);
  put(cache, tokens(3), 3, 1000);
  cache.find(kSmall, "", tokens(1));
  put(cache, tokens(4), 4, 1000);
  EXPECT_LE(cache.bytes(), 4000u);
  EXPECT_EQ(cache.find(kSmall, "", tokens(1)).tokens, 1u);
  EXPECT_EQ(cache.find(kSmall, "", tokens(2)).tokens, 0u);
  put(cache, tokens(5), 5, 5000);  // larger than the budget
  EXPECT_EQ(cache.find(kSmall, "", tokens(5)).tokens, 0u);
  EXPECT_EQ(cache.find(kSmall, "", tokens(4)).tokens, 1u);
  // A state for the same tokens replaces the first and is counted once.
  const auto before = cache.bytes();
  put(cache, tokens(4), 6, 1000);
  EXPECT_EQ(cache.bytes(), before);
  EXPECT_EQ(mark_of(cache.find(kSmall, "", tokens(4)), 1000), 6);
}

// With states of random sizes, every state found is intact and the total stays within the budget.
TEST(PrefixCache, StatesNeverOverlap) {
  constexpr std::size_t kBudget = 64 << 10;
  PrefixCache cache(kBudget, Device::Cpu);
  Rng rng(3);
  std::map<TokenId, std::size_t> sizes;
  std::size_t found = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto id = static_cast<TokenId>(rng.below(120));
    if (rng.below(2) == 0) {
      sizes[id] = 1 + rng.below(6000);
      put(cache, {id}, id, sizes[id]);
      EXPECT_LE(cache.bytes(), kBudget);
    } else if (const auto known = cache.find(kSmall, "", std::vector<TokenId>{id}); known.tokens > 0) {
      ASSERT_EQ(mark_of(known, sizes[id]), id);
      ++found;
    }
  }
  EXPECT_GT(found, 100u);
  EXPECT_EQ(held(), kBudget) << "one allocation for all";
}

TEST(PrefixCache, WithoutABudgetKeepsNothing) {
  PrefixCache cache(0, Device::Cpu);
  EXPECT_FALSE(cache.enabled());
  put(cache, {1}, 1);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{1}).tokens, 0u);
  EXPECT_EQ(cache.bytes() + held(), 0u);
}

// A failed allocation frees the memory of all states and halves the cache's budget.
TEST(PrefixCache, GivesWayToOtherMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the program instead";
#endif
  PrefixCache cache(16 << 10, Device::Cpu);
  const auto fail_to_allocate = [] {
    EXPECT_THROW(Buffer(Device::Cpu, std::size_t{1} << 62, "more than there is"), Error);
  };
  fail_to_allocate();
  EXPECT_TRUE(cache.enabled()) << "it held nothing";
  put(cache, {1}, 1, 9000);
  EXPECT_EQ(held(), 16u << 10);
  auto found = cache.find(kSmall, "", std::vector<TokenId>{1});
  fail_to_allocate();
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(mark_of(found, 9000), 1) << "a state in use stays";
  found = {};
  EXPECT_EQ(held(), 0u);
  EXPECT_EQ(cache.find(kSmall, "", std::vector<TokenId>{1}).tokens, 0u);
  put(cache, {1}, 1, 9000);
  EXPECT_EQ(cache.bytes(), 0u) << "larger than half";
  put(cache, {2}, 2, 2000);
  EXPECT_EQ(mark_of(cache.find(kSmall, "", std::vector<TokenId>{2}), 2000), 2);
  EXPECT_EQ(held(), 8u << 10);
}

// A budget beyond the device's memory is reduced until it can be allocated.
TEST(PrefixCache, ABudgetBeyondTheMemoryIsReduced) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the program instead";
#endif
  PrefixCache cache(std::size_t{1} << 62, Device::Cpu);
  put(cache, {1}, 1);
  EXPECT_EQ(mark_of(cache.find(kSmall, "", std::vector<TokenId>{1})), 1);
  EXPECT_LT(held(), std::size_t{1} << 62);
}

}  // namespace
}  // namespace essh::serve
