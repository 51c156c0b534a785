#include "essh/data/sample_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace essh {
namespace {

TEST(SampleOrder, EveryEpochIsAPermutation) {
  for (const std::int64_t samples : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097}) {
    const SampleOrder order(42, samples);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<bool> seen(static_cast<std::size_t>(samples));
      for (std::int64_t i = 0; i < samples; ++i) {
        const auto sample = order(epoch * samples + i);
        ASSERT_GE(sample, 0);
        ASSERT_LT(sample, samples);
        ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]);
        seen[static_cast<std::size_t>(sample)] = true;
      }
    }
  }
}

// Rank correlation of shuffled positions with the identity, with another epoch and with another seed: all near zero.
TEST(SampleOrder, EpochsAndSeedsAreUnrelated) {
  constexpr std::int64_t kSamples = 5000;
  const SampleOrder order(1, kSamples);
  const SampleOrder other(2, kSamples);
  double itself = 0;
  double epoch = 0;
  double seed = 0;
  const double mean = (kSamples - 1) / 2.0;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const double x = static_cast<double>(order(i)) - mean;
    itself += x * (static_cast<double>(i) - mean);
    epoch += x * (static_cast<double>(order(kSamples + i)) - mean);
    seed += x * (static_cast<double>(other(i)) - mean);
  }
  const double variance = kSamples * (static_cast<double>(kSamples) * kSamples - 1) / 12.0;
  const double limit = 4 / std::sqrt(static_cast<double>(kSamples));
  EXPECT_LT(std::abs(itself / variance), limit);
  EXPECT_LT(std::abs(epoch / variance), limit);
  EXPECT_LT(std::abs(seed / variance), limit);
}

// Over many epochs a given sample is equally often at every position.
TEST(SampleOrder, PlacesAreUniform) {
  constexpr std::int64_t kSamples = 7;
  constexpr std::int64_t kEpochs = 7000;
  const SampleOrder order(3, kSamples);
  std::vector<int> counts(kSamples * kSamples);
  for (std::int64_t n = 0; n < kSamples * kEpochs; ++n)
    ++counts[static_cast<std::size_t>(order(n) * kSamples + n % kSamples)];
  for (const int count : counts)
    EXPECT_NEAR(count, kEpochs / kSamples, 5 * std::sqrt(static_cast<double>(kEpochs) / kSamples));
}

// Must never change: a checkpoint holds a position in this order.
TEST(SampleOrder, TheOrderIsFrozen) {
  const SampleOrder order(1234, 1'000'000'007);
  EXPECT_EQ(order(0), 948114720);
  EXPECT_EQ(order(1), 385068811);
  EXPECT_EQ(order(5'000'000'000), 476853548);
}

}  // namespace
}  // namespace essh
