#include "essh/spectral/hankel.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "essh/base/error.h"
#include "essh/spectral/hankel_extended.h"

namespace essh {
namespace {

// Z = integral over lambda in [0, 1] of mu mu^T with mu_t = (1 - lambda) lambda^(t-1). With lambda = exp(-x) and x on a
// logarithmic grid the trapezoidal rule converges geometrically: 200 nodes reach the trace to 1e-14.
constexpr int kNodes = 200;
constexpr double kSmallestNode = 1e-9;
constexpr double kLargestNode = 60.0;
// The error of a singular vector is about the rounding error divided by its relative singular value: below this, double
// is not enough. The paper's 32 filters of length 2048 end at 1.6e-9.
constexpr double kLeastInDouble = 1e-9;

// M with Z = M M^T: one column sqrt(weight) mu(lambda) per node. Its singular values are the square roots of Z's
// eigenvalues, so M resolves twice as many digits as Z.
Eigen::MatrixXd gram_factor(std::int64_t length) {
  const double first = std::log(kSmallestNode);
  const double step = (std::log(kLargestNode) - first) / (kNodes - 1);
  Eigen::MatrixXd factor(length, kNodes);
  for (int node = 0; node < kNodes; ++node) {
    const double x = std::exp(first + step * node);
    const double trapezoid = (node == 0 || node == kNodes - 1) ? 0.5 * step : step;
    // d lambda = lambda dx = lambda x d(log x), and 1 - lambda = -expm1(-x).
    const double scale = -std::expm1(-x) * std::sqrt(std::exp(-x) * x * trapezoid);
    for (std::int64_t t = 0; t < length; ++t) factor(t, node) = scale * std::exp(-x * static_cast<double>(t));
  }
  return factor;
}

EigenPairs pairs_in_double(std::int64_t length, int channels) {
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(gram_factor(length), Eigen::ComputeThinU);
  EigenPairs pairs;
  for (int k = 0; k < std::min(channels, static_cast<int>(svd.singularValues().size())); ++k) {
    const auto column = svd.matrixU().col(k);
    pairs.vectors.insert(pairs.vectors.end(), column.begin(), column.end());
    pairs.sigma.push_back(svd.singularValues()[k] * svd.singularValues()[k]);
  }
  return pairs;
}

double hankel_trace(std::int64_t length) {
  double trace = 0;
  for (std::int64_t s = length; s >= 1; --s) {
    const double n = 2.0 * static_cast<double>(s);
    trace += 2.0 / ((n - 1.0) * n * (n + 1.0));
  }
  return trace;
}

}  // namespace

int sign_changes(std::span<const double> values) {
  int changes = 0;
  double previous = 0;
  for (const double value : values) {
    if (value == 0) continue;
    if (previous != 0 && std::signbit(previous) != std::signbit(value)) ++changes;
    previous = value;
  }
  return changes;
}

HankelFilters hankel_filters(std::int64_t length, int channels) {
  if (length < kMinFilterLength || length > kMaxFilterLength)
    fail(ErrorKind::Usage, "spectral: the filter length must be from {} to {}, got {}", kMinFilterLength,
         kMaxFilterLength, length);
  if (channels < 1) fail(ErrorKind::Usage, "spectral: at least one channel is needed, got {}", channels);

  auto pairs = pairs_in_double(length, channels);
  if (std::ssize(pairs.sigma) < channels || !(std::sqrt(pairs.sigma.back() / pairs.sigma.front()) > kLeastInDouble))
    pairs = extended_hankel_pairs(length, channels);
  HankelFilters result{.length = length, .trace = hankel_trace(length), .sigma = {}, .samples = {}};
  for (int k = 0; k < static_cast<int>(pairs.sigma.size()); ++k) {
    const auto filter = std::span<const double>(pairs.vectors)
                            .subspan(static_cast<std::size_t>(k * length), static_cast<std::size_t>(length));
    if (sign_changes(filter) != k) break;
    // The first entry of this eigenvector is never zero, and the count of sign changes confirms its sign.
    const double sign = filter[0] < 0 ? -1.0 : 1.0;
    for (const double value : filter) result.samples.push_back(sign * value);
    result.sigma.push_back(pairs.sigma[static_cast<std::size_t>(k)]);
  }
  if (result.channels() < channels)
    fail(ErrorKind::Usage,
         "spectral: {} channels asked, but only {} filters of length {} are resolved with 106 bits; ask for fewer "
         "channels or longer filters",
         channels, result.channels(), length);
  return result;
}

}  // namespace essh
