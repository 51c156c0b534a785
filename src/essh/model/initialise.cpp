#include "essh/model/initialise.h"

#include <algorithm>
#include <vector>

#include "essh/base/fnv.h"
#include "essh/base/rng.h"
#include "essh/base/thread_pool.h"

namespace essh {

template <class W>
void initialise(Parameters<W>& parameters, const ModelConfig& config, std::uint64_t seed, ModalInit modes) {
  ModalTable table;
  if (config.has(MixerKind::Spectral))
    table = make_modal_table(modes, static_cast<int>(config.spectral_channels), static_cast<int>(config.spectral_modes),
                             seed);
  const auto& tensors = parameters.layout().tensors();
  // Pieces are filled in parallel. Element i of a tensor is the i-th normal number of its stream.
  struct Piece {
    std::size_t tensor, first, count;
  };
  constexpr std::size_t kMost = std::size_t{1} << 20;
  std::vector<Piece> pieces;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto size = parameters.tensor(t).size();
    for (std::size_t first = 0; first < size; first += kMost)
      pieces.push_back({t, first, std::min(kMost, size - first)});
  }
  ThreadPool(available_cores()).each(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t item, int) {
    const auto [tensor, first, count] = pieces[static_cast<std::size_t>(item)];
    const auto& spec = tensors[tensor];
    const auto values = parameters.tensor(tensor).subspan(first, count);
    if (spec.initial.modal) {
      const auto from = (table.*spec.initial.modal).begin() + static_cast<std::ptrdiff_t>(first);
      std::transform(from, from + static_cast<std::ptrdiff_t>(count), values.begin(),
                     [](double x) { return static_cast<W>(x); });
    } else if (spec.initial.deviation > 0) {
      Rng rng(seed, fnv1a(spec.name));  // a stream of the tensor's own
      rng.seek(first * Rng::kNormalWords);
      for (auto& x : values) x = static_cast<W>(spec.initial.deviation * rng.normal());
    } else {
      std::fill(values.begin(), values.end(), static_cast<W>(spec.initial.constant));
    }
  });
}

template void initialise(Parameters<float>&, const ModelConfig&, std::uint64_t, ModalInit);
template void initialise(Parameters<double>&, const ModelConfig&, std::uint64_t, ModalInit);

}  // namespace essh
