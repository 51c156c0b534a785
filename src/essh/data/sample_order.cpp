#include "essh/data/sample_order.h"

#include <algorithm>
#include <bit>

#include "essh/base/error.h"
#include "essh/base/rng.h"

namespace essh {
namespace {
// Four rounds make a pseudo-random permutation (Luby and Rackoff); small domains need a few more.
constexpr std::uint32_t kRounds = 8;
}  // namespace

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t samples)
    : seed_(seed), samples_(static_cast<std::uint64_t>(samples)), half_bits_(1) {
  ESSH_ASSERT(samples > 0);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(samples_ - 1)) + 1) / 2);
}

std::int64_t SampleOrder::operator()(std::int64_t index) const {
  ESSH_ASSERT(index >= 0);
  const auto place = static_cast<std::uint64_t>(index);
  return static_cast<std::int64_t>(permute(place % samples_, place / samples_));
}

std::uint64_t SampleOrder::permute(std::uint64_t place, std::uint64_t epoch) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  // Cycle walking: permutes again until the result is in [0, samples). The domain is less than four times the samples
  // (for two samples or more), so this takes less than four rounds on average.
  do {
    std::uint64_t left = place >> half_bits_;
    std::uint64_t right = place & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto block = philox({static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch),
                                 static_cast<std::uint32_t>(epoch >> 32)},
                                {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
      const auto mixed = left ^ (block[0] & mask);
      left = right;
      right = mixed;
    }
    place = left << half_bits_ | right;
  } while (place >= samples_);
  return place;
}

}  // namespace essh
