#include "essh/model/initialise.h"

#include <cmath>

#include "essh/base/rng.h"
#include "essh/base/thread_pool.h"

namespace essh {
namespace {

// FNV-1a: the stream of a tensor's random numbers.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

template <class W>
void initialise(Parameters<W>& parameters, const ModelConfig& config, std::uint64_t seed, ModalInit modes) {
  const auto table = make_modal_table(modes, static_cast<int>(config.spectral_channels),
                                      static_cast<int>(config.spectral_modes), seed);
  const auto& tensors = parameters.layout().tensors();
  // A tensor's values depend on no other's: they are drawn side by side.
  ThreadPool(available_cores()).each(static_cast<std::int64_t>(tensors.size()), [&](std::int64_t item, int) {
    const auto index = static_cast<std::size_t>(item);
    const auto& spec = tensors[index];
    const auto values = parameters.tensor(index);
    const auto fill = [&](double value) {
      for (auto& x : values) x = static_cast<W>(value);
    };
    const auto normal = [&](double deviation) {
      Rng rng(seed, stream_of(spec.name));
      for (auto& x : values) x = static_cast<W>(deviation * rng.normal());
    };
    const auto copy = [&](const std::vector<double>& from) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<W>(from[i]);
    };
    switch (spec.initial) {
      case Initial::Normal:
        normal(0.02);
        break;
      case Initial::NormalOut:
        normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers)));
        break;
      case Initial::One:
        fill(1);
        break;
      case Initial::Zero:
        fill(0);
        break;
      case Initial::ClockBias:
        fill(-3);
        break;
      case Initial::ZeroLag:
        fill(0.5);
        break;
      case Initial::Decay:
        copy(table.decay);
        break;
      case Initial::Frequency:
        copy(table.frequency);
        break;
      case Initial::ReadoutCos:
        copy(table.readout_cos);
        break;
      case Initial::ReadoutSin:
        copy(table.readout_sin);
        break;
    }
  });
}

template void initialise(Parameters<float>&, const ModelConfig&, std::uint64_t, ModalInit);
template void initialise(Parameters<double>&, const ModelConfig&, std::uint64_t, ModalInit);

}  // namespace essh
