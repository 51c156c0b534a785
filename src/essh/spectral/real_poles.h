#pragma once
#include <vector>

#include "essh/spectral/hankel.h"

namespace essh {

// Errors of approximating the filters by sums of positive real decays, without rotation: phi_k(tau) ~ sum_i c_i
// rho_i^tau, 0 < rho_i < 1.
struct RealPoleFits {
  int channels = 0;
  int modes = 0;
  std::vector<double> errors;  // [channels, modes]: relative 2-norm error with the first i + 1 poles
  std::vector<double> poles;   // [channels, modes]: rho in the order in which they were chosen

  // With the first `count` poles, of a channel counted from zero.
  double error(int channel, int count) const { return errors[static_cast<std::size_t>(channel * modes + count - 1)]; }
};

// Orthogonal matching pursuit over 1000 rates -log(rho), log-spaced on [1e-4, 2]: each step adds the decay that
// correlates most with the residual and refits all readouts. The poles of a smaller fit are the first poles of a larger
// one. The paper does not name its method; this one comes closest to its table.
RealPoleFits fit_real_poles(const HankelFilters& filters, int modes);

// The error of reconstructing the weighted family mu(lambda) from the first `kept` channels, each replaced by its fit:
// the sum of the eigenvalues beyond `kept`, plus the sum of sigma_k * fit_errors[k]^2 over the kept channels.
struct ReconstructionError {
  double tail = 0;
  double fit = 0;

  double total() const { return tail + fit; }
};
ReconstructionError reconstruction_error(const HankelFilters& filters, std::span<const double> fit_errors, int kept);

}  // namespace essh
