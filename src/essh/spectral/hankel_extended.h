#pragma once
#include <cstdint>
#include <vector>

namespace essh {

// The leading eigenpairs of the Hankel matrix of hankel.h, computed with 106 bits; signs are free.
struct EigenPairs {
  std::vector<double> sigma;    // eigenvalues, decreasing
  std::vector<double> vectors;  // [channels, length], unit rows
};
EigenPairs extended_hankel_pairs(std::int64_t length, int channels);

}  // namespace essh
