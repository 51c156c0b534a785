#include "essh/spectral/matrix_pencil.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <complex>
#include <tuple>

#include "essh/base/error.h"
#include "essh/base/rng.h"

namespace essh {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using Pole = std::complex<double>;

// Row i, column j is signal[i + j]: columns overlap in memory, nothing is copied.
using HankelView = Eigen::Map<const MatrixXd, Eigen::Unaligned, Eigen::OuterStride<1>>;

MatrixXd random_probes(Rng& rng, Index rows, Index columns) {
  return MatrixXd::NullaryExpr(rows, columns, [&rng] { return rng.uniform() - 0.5; });
}

// The leading right singular vectors, by a randomised sketch: the Hankel matrix of a smooth signal has few singular
// values above rounding. If noise makes the sketch inexact, it is refined by one more product with the matrix and
// doubled in width, at most to the whole range.
MatrixXd right_singular_vectors(const HankelView& hankel, int count) {
  const Index columns = hankel.cols();
  const double rounding = 1e-14 * hankel.norm();
  Rng rng(0);
  Index width = std::min<Index>(columns, 24 + count);
  MatrixXd probes = random_probes(rng, columns, width);
  for (;;) {
    const Eigen::HouseholderQR<MatrixXd> qr(hankel * probes);
    const MatrixXd range = qr.householderQ() * MatrixXd::Identity(hankel.rows(), width);
    const MatrixXd projected = hankel.transpose() * range;
    const Eigen::JacobiSVD<MatrixXd> svd(projected, Eigen::ComputeThinU | Eigen::ComputeThinV);
    const VectorXd values = svd.singularValues().head(count);
    const MatrixXd right = svd.matrixU().leftCols(count);
    const MatrixXd left = range * svd.matrixV().leftCols(count);
    const double residual = (hankel * right - left * values.asDiagonal()).norm();
    if (width == columns || residual <= std::max(rounding, 1e-12 * values[count - 1])) return right;
    const Index wider = std::min(columns, 2 * width);
    probes.resize(columns, wider);
    probes << svd.matrixU(), random_probes(rng, columns, wider - width);
    width = wider;
  }
}

Pole clip(Pole pole) {
  const double magnitude = std::abs(pole);
  if (magnitude == 0) return kSmallestDecay;
  return pole * (std::clamp(magnitude, kSmallestDecay, kLargestDecay) / magnitude);
}

// Poles with a non-negative imaginary part; each one above the axis also stands for its conjugate.
std::vector<Pole> upper_poles(const HankelView& hankel, int modes) {
  const MatrixXd vectors = right_singular_vectors(hankel, modes);
  const Index rows = vectors.rows() - 1;
  const MatrixXd shift = vectors.topRows(rows).householderQr().solve(vectors.bottomRows(rows));
  const Eigen::EigenSolver<MatrixXd> eigen(shift, /*computeEigenvectors=*/false);
  if (eigen.info() != Eigen::Success) fail(ErrorKind::Internal, "matrix pencil: the eigenvalues did not converge");
  std::vector<Pole> poles;
  for (const Pole& pole : eigen.eigenvalues())
    if (pole.imag() >= 0) poles.push_back(clip(pole));
  return poles;
}

// Least squares for c in signal(tau) = sum over all poles of c z^tau, with conjugate c for conjugate poles; in real
// numbers: one column for a real pole, 2 Re z^tau and -2 Im z^tau for a pair.
std::vector<Pole> readouts(std::span<const Pole> poles, std::span<const double> signal) {
  const auto length = static_cast<Index>(signal.size());
  Index columns = 0;
  for (const Pole& pole : poles) columns += pole.imag() > 0 ? 2 : 1;
  MatrixXd basis(length, columns);
  Index column = 0;
  for (const Pole& pole : poles) {
    const double rate = std::log(std::abs(pole));
    const double theta = std::arg(pole);
    const bool pair = pole.imag() > 0;
    for (Index tau = 0; tau < length; ++tau) {
      const auto time = static_cast<double>(tau);
      const double decay = (pair ? 2.0 : 1.0) * std::exp(rate * time);
      basis(tau, column) = decay * std::cos(theta * time);
      if (pair) basis(tau, column + 1) = -decay * std::sin(theta * time);
    }
    column += pair ? 2 : 1;
  }
  // Poles made equal by clipping give dependent columns: take the minimum-norm solution.
  const VectorXd solution =
      basis.completeOrthogonalDecomposition().solve(Eigen::Map<const VectorXd>(signal.data(), length));
  std::vector<Pole> result;
  column = 0;
  for (const Pole& pole : poles) {
    const bool pair = pole.imag() > 0;
    result.emplace_back(solution[column], pair ? solution[column + 1] : 0.0);
    column += pair ? 2 : 1;
  }
  return result;
}

}  // namespace

PencilFit fit_damped_modes(std::span<const double> signal, int modes) {
  const auto length = static_cast<Index>(signal.size());
  const Index pencil = length / 4;
  if (modes < 1 || modes > pencil)
    fail(ErrorKind::Usage, "matrix pencil: a signal of length {} can be fitted with 1 to {} modes, got {}", length,
         pencil, modes);
  if (!std::ranges::all_of(signal, [](double value) { return std::isfinite(value); }))
    fail(ErrorKind::Usage, "matrix pencil: the signal is not finite");
  if (std::ranges::all_of(signal, [](double value) { return value == 0; }))
    fail(ErrorKind::Usage, "matrix pencil: the signal is zero everywhere");

  const HankelView hankel(signal.data(), length - pencil, pencil + 1, Eigen::OuterStride<1>());
  const std::vector<Pole> poles = upper_poles(hankel, modes);
  const std::vector<Pole> coefficients = readouts(poles, signal);

  PencilFit fit;
  for (std::size_t i = 0; i < poles.size(); ++i) {
    const double rho = std::abs(poles[i]);
    const double theta = std::arg(poles[i]);
    const Pole c = coefficients[i];
    fit.modes.push_back({rho, theta, c.real(), c.imag()});
    if (poles[i].imag() > 0) fit.modes.push_back({rho, -theta, c.real(), -c.imag()});
  }
  std::ranges::sort(fit.modes, [](const DampedMode& a, const DampedMode& b) {
    return std::tuple(-a.rho, std::abs(a.theta), -a.theta) < std::tuple(-b.rho, std::abs(b.theta), -b.theta);
  });
  fit.error = relative_error(signal, response(fit.modes, length));
  return fit;
}

std::vector<double> response(std::span<const DampedMode> modes, std::int64_t length) {
  std::vector<double> values(static_cast<std::size_t>(length));
  for (const DampedMode& mode : modes) {
    const double rate = std::log(mode.rho);
    for (std::int64_t tau = 0; tau < length; ++tau) {
      const auto time = static_cast<double>(tau);
      const double angle = mode.theta * time;
      values[static_cast<std::size_t>(tau)] +=
          std::exp(rate * time) * (mode.readout_cos * std::cos(angle) - mode.readout_sin * std::sin(angle));
    }
  }
  return values;
}

double relative_error(std::span<const double> target, std::span<const double> values) {
  ESSH_ASSERT(target.size() == values.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    difference += (target[i] - values[i]) * (target[i] - values[i]);
    norm += target[i] * target[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace essh
