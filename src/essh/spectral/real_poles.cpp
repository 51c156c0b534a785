#include "essh/spectral/real_poles.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "essh/base/error.h"

namespace essh {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr int kCandidates = 1000;
constexpr double kSlowestRate = 1e-4, kFastestRate = 2;

double candidate_rate(Index index) {
  const double first = std::log(kSlowestRate), last = std::log(kFastestRate);
  return std::exp(first + (last - first) * static_cast<double>(index) / (kCandidates - 1));
}

// One column of unit norm per candidate.
MatrixXd candidate_decays(std::int64_t length) {
  MatrixXd decays(length, kCandidates);
  for (Index j = 0; j < kCandidates; ++j) {
    for (Index tau = 0; tau < length; ++tau) decays(tau, j) = std::exp(-candidate_rate(j) * static_cast<double>(tau));
    decays.col(j).normalize();
  }
  return decays;
}

}  // namespace

RealPoleFits fit_real_poles(const HankelFilters& filters, int modes) {
  const auto length = static_cast<Index>(filters.length);
  if (modes < 1 || modes > std::min<Index>(length, kCandidates)) {
    fail(ErrorKind::Usage, "real poles: filters of length {} can be fitted with 1 to {} poles, got {}", length,
         std::min<Index>(length, kCandidates), modes);
  }
  const int channels = filters.channels();
  RealPoleFits fits{.channels = channels, .modes = modes, .errors = {}, .poles = {}};
  fits.errors.resize(static_cast<std::size_t>(channels * modes));
  fits.poles.resize(fits.errors.size());
  const MatrixXd decays = candidate_decays(filters.length);
  MatrixXd left = Eigen::Map<const MatrixXd>(filters.samples.data(), length, channels);
  std::vector<MatrixXd> bases(static_cast<std::size_t>(channels), MatrixXd(length, modes));
  std::vector<std::vector<bool>> used(static_cast<std::size_t>(channels), std::vector<bool>(kCandidates));
  for (int step = 0; step < modes; ++step) {
    const MatrixXd correlations = decays.transpose() * left;
    for (int k = 0; k < channels; ++k) {
      const auto channel = static_cast<std::size_t>(k), at = static_cast<std::size_t>(k * modes + step);
      Index best = -1;
      for (Index j = 0; j < kCandidates; ++j) {
        if (used[channel][static_cast<std::size_t>(j)]) continue;
        if (best < 0 || std::abs(correlations(j, k)) > std::abs(correlations(best, k))) best = j;
      }
      used[channel][static_cast<std::size_t>(best)] = true;
      fits.poles[at] = std::exp(-candidate_rate(best));
      // Decays are nearly dependent: three rounds of orthogonalisation are needed.
      auto& basis = bases[channel];
      VectorXd direction = decays.col(best);
      for (int round = 0; round < 3; ++round)
        direction -= basis.leftCols(step) * (basis.leftCols(step).transpose() * direction);
      const double size = direction.norm();
      basis.col(step) = size > 1e-14 ? VectorXd(direction / size) : VectorXd::Zero(length);
      left.col(k) -= basis.col(step) * basis.col(step).dot(left.col(k));
      fits.errors[at] = left.col(k).norm();
    }
  }
  return fits;
}

ReconstructionError reconstruction_error(const HankelFilters& filters, std::span<const double> fit_errors, int kept) {
  ESSH_ASSERT(kept >= 0 && kept <= filters.channels() && static_cast<std::size_t>(kept) <= fit_errors.size());
  ReconstructionError error;
  double known = 0;
  for (int k = filters.channels(); k-- > 0;) {
    const double sigma = filters.sigma[static_cast<std::size_t>(k)];
    known += sigma;
    if (k >= kept)
      error.tail += sigma;
    else
      error.fit += sigma * std::pow(fit_errors[static_cast<std::size_t>(k)], 2);
  }
  // Channels beyond the last computed one; often less than the rounding of the trace.
  error.tail += std::max(0.0, filters.trace - known);
  return error;
}

}  // namespace essh
