#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/spectral/matrix_pencil.h"

namespace essh {

// Initialisations of a spectral mixer's modes; docs/spectral.md defines them.
enum class ModalInit {
  Hankel,          // each channel fits its Hankel filter
  Random,          // fitted values permuted at random, same root-mean-square norm
  NonOscillatory,  // rho = exp(-0.01), no rotation, no readout
  Shuffled,        // fitted channels in random slots
  Reversed,        // fitted channels in reverse order
  Uniform1e3,      // fitted, but rho = 1 - 1e-3 everywhere
  Uniform1e4,      // fitted, but rho = 1 - 1e-4 everywhere
  S4dLin,          // poles exp(step (-1/2 + i pi n)), random steps and readouts
};

// "hankel", "random", "non_oscillatory", "shuffled", "reversed", "uniform_1e-3", "uniform_1e-4", "s4d_lin", in this
// order.
std::span<const std::string> modal_init_names();
const std::string& to_string(ModalInit init);
ModalInit parse_modal_init(std::string_view name);

// The initial modes of one mixer, each array [channels, modes].
struct ModalTable {
  int channels = 0;
  int modes = 0;
  std::vector<double> decay;  // raw: rho = exp(-softplus(decay))
  std::vector<double> frequency;
  std::vector<double> readout_cos;
  std::vector<double> readout_sin;

  // The modes of one channel, counted from zero.
  std::vector<DampedMode> channel(int index) const;
};

// `seed` drives Random, Shuffled and S4dLin; the others do not depend on it. Fits are cached in memory. Thread-safe.
ModalTable make_modal_table(ModalInit init, int channels, int modes, std::uint64_t seed, std::int64_t length = 2048);

// The raw decay of a magnitude 0 < rho < 1, and back.
double decay_of_rho(double rho);
double rho_of_decay(double decay);

}  // namespace essh
