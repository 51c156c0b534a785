#include "essh/spectral/modal_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>
#include <tuple>
#include <utility>

#include "essh/base/error.h"
#include "essh/base/rng.h"
#include "essh/base/spelling.h"
#include "essh/base/thread_pool.h"
#include "essh/spectral/hankel.h"

namespace essh {
namespace {

using Channel = std::vector<DampedMode>;
using Bank = std::vector<Channel>;

const std::array<std::string, 8> kNames = {"hankel",   "random",       "non_oscillatory", "shuffled",
                                           "reversed", "uniform_1e-3", "uniform_1e-4",    "s4d_lin"};

// S4D's range of step sizes.
constexpr double kSmallestStep = 1e-3;
constexpr double kLargestStep = 1e-1;

// Far beyond any model; stops a mistyped size from taking all memory.
constexpr int kMaxTableSize = 1 << 20;

Bank fit_bank(int channels, int modes, std::int64_t length) {
  const HankelFilters filters = hankel_filters(length, channels);
  Bank bank(static_cast<std::size_t>(channels));
  ThreadPool pool(std::min(channels, available_cores()));
  pool.each(channels, [&](std::int64_t k, int) {
    bank[static_cast<std::size_t>(k)] = fit_damped_modes(filters.filter(static_cast<int>(k)), modes).modes;
  });
  return bank;
}

// Cached per process and size: every layer starts from the same fit.
Bank fitted_bank(int channels, int modes, std::int64_t length) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int, std::int64_t>, Bank> cache;
  const std::lock_guard lock(mutex);
  const auto key = std::tuple(channels, modes, length);
  auto found = cache.find(key);
  if (found == cache.end()) found = cache.emplace(key, fit_bank(channels, modes, length)).first;
  return found->second;
}

template <class T>
void shuffle(std::vector<T>& values, Rng& rng) {
  for (std::size_t left = values.size(); left > 1; --left) std::swap(values[left - 1], values[rng.below(left)]);
}

double energy(const Channel& channel, std::int64_t length) {
  const std::vector<double> values = response(channel, length);
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

// Decays, frequencies and readouts are permuted over the whole bank, independently of each other. Each channel is then
// scaled to the same response norm, the root mean square of the fitted ones: otherwise the readout of a fast mode
// applied to a slow one would change the scale by orders of magnitude.
Bank randomised(const Bank& fitted, std::int64_t length, Rng& rng) {
  std::vector<double> rho;
  std::vector<double> theta;
  std::vector<std::pair<double, double>> readout;
  double mean_energy = 0;
  for (const Channel& channel : fitted) {
    mean_energy += energy(channel, length) / static_cast<double>(fitted.size());
    for (const DampedMode& mode : channel) {
      rho.push_back(mode.rho);
      theta.push_back(mode.theta);
      readout.emplace_back(mode.readout_cos, mode.readout_sin);
    }
  }
  shuffle(rho, rng);
  shuffle(theta, rng);
  shuffle(readout, rng);
  Bank bank = fitted;
  std::size_t next = 0;
  for (Channel& channel : bank) {
    for (DampedMode& mode : channel) {
      mode = {rho[next], theta[next], readout[next].first, readout[next].second};
      ++next;
    }
    const double scale = std::sqrt(mean_energy / energy(channel, length));
    for (DampedMode& mode : channel) {
      mode.readout_cos *= scale;
      mode.readout_sin *= scale;
    }
  }
  return bank;
}

Bank with_uniform_rho(Bank bank, double rho) {
  for (Channel& channel : bank)
    for (DampedMode& mode : channel) mode.rho = rho;
  return bank;
}

// S4D-Lin: dx/dt = A x + u with A_n = -1/2 + i pi n, y = 2 Re(C x), C standard complex normal, sampled by zero-order
// hold with one step per channel, log-uniform over S4D's range.
Bank s4d_lin(int channels, int modes, Rng& rng) {
  Bank bank;
  for (int k = 0; k < channels; ++k) {
    const double step = kSmallestStep * std::pow(kLargestStep / kSmallestStep, rng.uniform());
    Channel channel;
    for (int n = 0; n < modes; ++n) {
      const std::complex<double> pole(-0.5, std::numbers::pi * n);
      const double real = rng.normal();
      const double imaginary = rng.normal();
      const std::complex<double> weight = std::complex<double>(real, imaginary) * std::numbers::sqrt2;
      const std::complex<double> readout = weight * (std::exp(step * pole) - 1.0) / pole;
      channel.push_back({std::exp(-0.5 * step), std::numbers::pi * n * step, readout.real(), readout.imag()});
    }
    bank.push_back(std::move(channel));
  }
  return bank;
}

Bank make_bank(ModalInit init, int channels, int modes, std::uint64_t seed, std::int64_t length) {
  // One random stream per kind, separate from the streams of weights with the same seed.
  Rng rng(seed, 0x6d6f64616c000000u + static_cast<std::uint64_t>(init));
  switch (init) {
    case ModalInit::Hankel:
      return fitted_bank(channels, modes, length);
    case ModalInit::Random:
      return randomised(fitted_bank(channels, modes, length), length, rng);
    case ModalInit::NonOscillatory:
      return Bank(static_cast<std::size_t>(channels),
                  Channel(static_cast<std::size_t>(modes), DampedMode{.rho = std::exp(-0.01)}));
    case ModalInit::Shuffled: {
      Bank bank = fitted_bank(channels, modes, length);
      shuffle(bank, rng);
      return bank;
    }
    case ModalInit::Reversed: {
      Bank bank = fitted_bank(channels, modes, length);
      std::ranges::reverse(bank);
      return bank;
    }
    case ModalInit::Uniform1e3:
      return with_uniform_rho(fitted_bank(channels, modes, length), 1 - 1e-3);
    case ModalInit::Uniform1e4:
      return with_uniform_rho(fitted_bank(channels, modes, length), 1 - 1e-4);
    case ModalInit::S4dLin:
      return s4d_lin(channels, modes, rng);
  }
  fail(ErrorKind::Internal, "modal init: unknown kind {}", static_cast<int>(init));
}

}  // namespace

std::span<const std::string> modal_init_names() {
  return kNames;
}

const std::string& to_string(ModalInit init) {
  return kNames.at(static_cast<std::size_t>(init));
}

ModalInit parse_modal_init(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end())
    fail(ErrorKind::Usage, "modal init: unknown name \"{}\"{}", name, suggestion(name, kNames));
  return static_cast<ModalInit>(found - kNames.begin());
}

double decay_of_rho(double rho) {
  // Inverse of gamma = softplus(decay), without overflow for large gamma or cancellation for small.
  const double gamma = -std::log(rho);
  return gamma + std::log(-std::expm1(-gamma));
}

double rho_of_decay(double decay) {
  return std::exp(-(std::max(decay, 0.0) + std::log1p(std::exp(-std::abs(decay)))));
}

std::vector<DampedMode> ModalTable::channel(int index) const {
  ESSH_ASSERT(index >= 0 && index < channels);
  std::vector<DampedMode> result;
  for (int i = index * modes; i < (index + 1) * modes; ++i) {
    const auto at = static_cast<std::size_t>(i);
    result.push_back({rho_of_decay(decay[at]), frequency[at], readout_cos[at], readout_sin[at]});
  }
  return result;
}

ModalTable make_modal_table(ModalInit init, int channels, int modes, std::uint64_t seed, std::int64_t length) {
  if (channels < 1 || modes < 1)
    fail(ErrorKind::Usage, "modal init: channels and modes must be at least 1, got {} and {}", channels, modes);
  if (modes > kMaxTableSize / channels)
    fail(ErrorKind::Usage, "modal init: {} channels of {} modes are more than the {} modes a table may hold", channels,
         modes, kMaxTableSize);
  ModalTable table{
      .channels = channels, .modes = modes, .decay = {}, .frequency = {}, .readout_cos = {}, .readout_sin = {}};
  for (const Channel& channel : make_bank(init, channels, modes, seed, length)) {
    for (const DampedMode& mode : channel) {
      table.decay.push_back(decay_of_rho(mode.rho));
      table.frequency.push_back(mode.theta);
      table.readout_cos.push_back(mode.readout_cos);
      table.readout_sin.push_back(mode.readout_sin);
    }
  }
  return table;
}

}  // namespace essh
