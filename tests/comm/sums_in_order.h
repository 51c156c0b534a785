#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace essh::comm::testing {

// Contribution of `rank`, of widely different magnitudes, so that another order of additions gives other bits.
inline std::vector<float> contribution(std::size_t count, int rank, std::uint64_t salt) {
  std::vector<float> values(count);
  std::uint64_t state = salt * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank) + 1;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<std::uint32_t>(state >> 33);
    value = static_cast<float>(static_cast<std::int32_t>(bits % 20001) - 10000) * (bits & 0x10000 ? 1.0e-4f : 1.7f);
  }
  return values;
}

template <class T>
std::vector<T> sum_in_order(std::size_t count, int ranks, std::uint64_t salt) {
  std::vector<T> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> values = contribution(count, rank, salt);
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] = rank == 0 ? static_cast<T>(values[i]) : sum[i] + static_cast<T>(values[i]);
    }
  }
  return sum;
}

}  // namespace essh::comm::testing
