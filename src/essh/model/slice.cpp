#include "essh/model/slice.h"

#include <algorithm>
#include <cmath>

namespace essh {
namespace {

template <class W>
void widen(const Weight& weight, Index row, std::span<W> values) {
  const auto copy = [&]<class E>(Matrix<const E> elements) {
    for (std::size_t c = 0; c < values.size(); ++c)
      values[c] = static_cast<W>(static_cast<Wide<E>>(elements(row, static_cast<Index>(c))));
  };
  switch (weight.format) {
    case Format::F64:
      return copy(weight.as<double>());
    case Format::F32:
      return copy(weight.as<float>());
    case Format::BF16:
      return copy(weight.as<BFloat16>());
    case Format::F16:
      break;
  }
  fail(ErrorKind::Internal, "slopes are not added to float16");  // StoredModel reads it as float32
}

template <class E>
std::vector<std::byte> sum_with_slope(const Weight& weight, const Weight& slope, double share) {
  using W = Wide<E>;
  std::vector<std::byte> sum(static_cast<std::size_t>(weight.bytes()));
  const auto to = dense(reinterpret_cast<E*>(sum.data()), weight.rows, weight.cols);
  std::vector<W> values(static_cast<std::size_t>(weight.cols)), along(values.size());
  for (Index r = 0; r < to.rows; ++r) {
    widen<W>(weight, r, values);
    widen<W>(slope, r, along);
    for (std::size_t c = 0; c < values.size(); ++c)
      to(r, static_cast<Index>(c)) = E(std::fma(static_cast<W>(share), along[c], values[c]));
  }
  return sum;
}

// weight + share * slope, dense, rounded to the weight's format. A file may store the slope in another.
std::vector<std::byte> add_slope(const Weight& weight, const Weight& slope, double share) {
  if (weight.format == Format::F64) return sum_with_slope<double>(weight, slope, share);
  if (weight.format == Format::BF16) return sum_with_slope<BFloat16>(weight, slope, share);
  return sum_with_slope<float>(weight, slope, share);
}

}  // namespace

ModelConfig slice(const ModelConfig& config, Capacity capacity) {
  auto sliced = config;
  sliced.elastic.slopes = false;
  if (capacity == full_capacity(config)) return sliced;
  if (config.has(MixerKind::Spectral)) sliced.spectral_channels = capacity.channels;
  sliced.intermediate_size = capacity.ffn;
  sliced.elastic = {};
  return sliced;
}

Weights slice(const ModelConfig& config, const Weights& weights, Capacity capacity) {
  const bool whole = capacity == full_capacity(config);
  if (whole && !config.elastic.slopes) return weights;
  Weights sliced{.tensors = {}, .stacks = whole && weights.stacks};
  const auto list = tensor_list(config);
  const auto cut = [&](std::size_t i) {
    return weights[i].top(list[i].kept_rows(capacity)).left(list[i].kept_cols(capacity));
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].slope) sliced.tensors.push_back(cut(i));
  }
  if (whole || !config.elastic.slopes) return sliced;
  auto made = std::make_shared<std::vector<std::vector<std::byte>>>();
  std::size_t next = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].slope) continue;
    auto& weight = sliced.tensors[next++];
    made->push_back(add_slope(weight, cut(i), slope_share(config, capacity)));
    weight = Weight(weight.format, made->back().data(), weight.rows, weight.cols);
  }
  sliced.made = std::move(made);
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
