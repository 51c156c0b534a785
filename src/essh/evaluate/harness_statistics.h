#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace essh {

// The statistics of lm-evaluation-harness 0.4 in the same order of operations: sums go from the first value to the
// last.
double mean_of(std::span<const double> values);
// Sample standard deviation / sqrt(size); NaN for fewer than two values.
double standard_error(std::span<const double> values);
// exp(-mean).
double perplexity_of(std::span<const double> log_likelihoods);
// Bootstrap standard errors of several perplexities over the same items: standard deviation over `iterations`
// resamples, rounded down to a multiple of 1000 if larger. Thousand n is drawn from Python's generator with seed n.
// `threads` share the work.
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
