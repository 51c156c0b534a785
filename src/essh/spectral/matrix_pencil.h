#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace essh {

// One damped rotation: tau -> rho^tau (readout_cos cos(theta tau) - readout_sin sin(theta tau)).
struct DampedMode {
  double rho = 0;
  double theta = 0;
  double readout_cos = 0;
  double readout_sin = 0;
};

struct PencilFit {
  // Slowest decay first. A conjugate pair is two modes, positive frequency first.
  std::vector<DampedMode> modes;
  double error = 0;  // ||signal - response|| / ||signal||
};

// Magnitudes of poles are clipped to this range. The lower bound keeps log(rho) finite.
inline constexpr double kLargestDecay = 0.9999;
inline constexpr double kSmallestDecay = 1e-9;

// Matrix pencil: the poles are the eigenvalues of the shift on the leading `modes` right singular vectors of the Hankel
// matrix with signal.size() / 4 + 1 columns, the readouts are least squares. Needs 1 <= modes <= signal.size() / 4 and
// a finite signal that is not zero everywhere. Deterministic.
PencilFit fit_damped_modes(std::span<const double> signal, int modes);

// The sum of the modes at tau = 0 .. length-1.
std::vector<double> response(std::span<const DampedMode> modes, std::int64_t length);

// ||target - values|| / ||target||, of the same size.
double relative_error(std::span<const double> target, std::span<const double> values);

}  // namespace essh
