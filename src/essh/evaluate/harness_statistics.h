#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace essh {

// The statistics of lm-evaluation-harness 0.4, operation by operation: sums run from the first value to the last.
double mean_of(std::span<const double> values);
// Deviation of the sample over the root of its size; NaN for less than two values.
double standard_error(std::span<const double> values);
// exp(-mean).
double perplexity_of(std::span<const double> log_likelihoods);
// Standard errors of several perplexities over the same items: deviation of `iterations` resamples (whole thousands are
// drawn, each from Python's generator with its number as the seed). `threads` share the work.
std::vector<double> perplexity_errors(std::span<const std::vector<double>> log_likelihoods, int iterations,
                                      int threads);

// Python's random.Random(seed): the Mersenne Twister.
class PythonRandom {
 public:
  explicit PythonRandom(std::uint32_t seed);
  // Uniform in [0, 1), 53 bits.
  double random();

 private:
  std::uint32_t next();
  void twist();

  std::uint32_t state_[624];
  int index_ = 624;
};

}  // namespace essh
