#include "essh/model/slice.h"

#include <algorithm>

namespace essh {

ModelConfig slice(const ModelConfig& config, Capacity capacity) {
  auto sliced = config;
  if (capacity == full_capacity(config)) return sliced;
  if (config.has(MixerKind::Spectral)) sliced.spectral_channels = capacity.channels;
  sliced.intermediate_size = capacity.ffn;
  sliced.elastic = {};
  return sliced;
}

Weights slice(const ModelConfig& config, const Weights& weights, Capacity capacity) {
  if (capacity == full_capacity(config)) return weights;
  Weights sliced;
  const auto list = tensor_list(config);
  for (std::size_t i = 0; i < list.size(); ++i)
    sliced.tensors.push_back(weights[i].top(list[i].kept_rows(capacity)).left(list[i].kept_cols(capacity)));
  return sliced;
}

template <class W>
Parameters<W> slice(const ModelConfig& config, const Parameters<W>& parameters, Capacity capacity) {
  const Weights views = slice(config, parameters.weights(), capacity);
  Parameters<W> copy(slice(config, capacity));
  for (std::size_t i = 0; i < views.tensors.size(); ++i) {
    const auto from = views.table<W>(i);
    W* to = copy.tensor(i).data();
    for (Index r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to + r * from.cols);
  }
  return copy;
}

template Parameters<float> slice(const ModelConfig&, const Parameters<float>&, Capacity);
template Parameters<double> slice(const ModelConfig&, const Parameters<double>&, Capacity);

}  // namespace essh
