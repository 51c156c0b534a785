#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace essh {

inline constexpr std::int64_t kMinFilterLength = 8;
inline constexpr std::int64_t kMaxFilterLength = 16384;

// The leading eigenpairs of the Hankel matrix Z[s][t] = 2 / ((s+t-1)(s+t)(s+t+1)), s, t = 1..length.
struct HankelFilters {
  std::int64_t length = 0;
  double trace = 0;             // of the whole matrix
  std::vector<double> sigma;    // eigenvalues, decreasing
  std::vector<double> samples;  // [channels, length], rows of unit 2-norm whose first entry is positive

  int channels() const { return static_cast<int>(sigma.size()); }
  // Filter `channel`, counted from zero.
  std::span<const double> filter(int channel) const {
    return std::span(samples).subspan(static_cast<std::size_t>(channel * length), static_cast<std::size_t>(length));
  }
};

// Z is strictly totally positive, so eigenvector k (from one) has exactly k-1 sign changes. A channel with another
// count is lost in rounding; requesting it is an error that says how many channels are resolved. If double is not
// enough (beyond 32 filters of length 2048), double-double arithmetic is used: 64 filters take 2 s.
HankelFilters hankel_filters(std::int64_t length, int channels);

// Number of sign changes along `values`, ignoring zeros.
int sign_changes(std::span<const double> values);

}  // namespace essh
