#pragma once
#include <cstdint>

namespace essh {

// The order of samples: every epoch visits each of `samples` once, shuffled. A keyed permutation (Feistel network over
// Philox with cycle walking), so nothing is stored and any index is computed directly.
class SampleOrder {
 public:
  SampleOrder(std::uint64_t seed, std::int64_t samples);

  std::int64_t samples() const { return static_cast<std::int64_t>(samples_); }
  // The sample at `index` >= 0 of the infinite stream; index / samples() is the epoch.
  std::int64_t operator()(std::int64_t index) const;

 private:
  std::uint64_t permute(std::uint64_t place, std::uint64_t epoch) const;

  std::uint64_t seed_;
  std::uint64_t samples_;
  int half_bits_;  // of the domain 2^(2 half_bits) that covers the samples
};

}  // namespace essh
