#include "essh/model/tensors.h"

#include <algorithm>
#include <cmath>

#include "essh/model/mixer.h"

namespace essh {
namespace {

// Tensors start at multiples of 256 bytes in float32, so slices of bf16 copies too are aligned for 16-byte loads.
constexpr Index kAlignment = 64;

}  // namespace

Initial initial_out(const ModelConfig& config) {
  return Initial::normal(0.02 / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers)));
}

std::vector<Index> ModelTensor::shape() const {
  return rank == 1 ? std::vector<Index>{rows} : std::vector<Index>{rows, cols};
}

std::vector<ModelTensor> tensor_list(const ModelConfig& c) {
  const Index d = c.hidden_size, n = c.intermediate_size;
  const Cut ffn{Axis::Ffn, 1};
  std::vector<ModelTensor> list;
  const auto gain = [&](std::string name, Index layer) {
    list.push_back({.name = std::move(name),
                    .layer = layer,
                    .rank = 1,
                    .rows = d,
                    .initial = Initial::fill(1),
                    .role = Role::Gain,
                    .decays = false});
  };
  list.push_back(
      {.name = "model.embed_tokens.weight", .rows = c.vocab_size, .cols = d, .role = Role::Embedding, .decays = false});
  for (Index layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    gain(prefix + "input_layernorm.weight", layer);
    for (auto& spec : mixer_tensors(c, layer)) {
      spec.name = prefix + spec.name;
      spec.layer = layer;
      list.push_back(std::move(spec));
    }
    gain(prefix + "post_attention_layernorm.weight", layer);
    list.push_back({.name = prefix + "mlp.gate_proj.weight", .layer = layer, .rows = n, .cols = d, .row_cut = ffn});
    list.push_back(
        {.name = prefix + "mlp.up_proj.weight", .layer = layer, .rows = n, .cols = d, .row_cut = ffn, .stacked = true});
    list.push_back({.name = prefix + "mlp.down_proj.weight",
                    .layer = layer,
                    .rows = d,
                    .cols = n,
                    .col_cut = ffn,
                    .initial = initial_out(c)});
  }
  gain("model.norm.weight", -1);
  if (c.elastic.slopes) {
    for (std::size_t i = 0, count = list.size(); i < count; ++i) {
      auto spec = list[i];
      spec.name += ".slope";
      spec.initial = Initial::fill(0);
      spec.slope = true;
      list.push_back(std::move(spec));
    }
  }
  // Small tensors come first: they stay in float32 if the matrices have another type.
  std::ranges::stable_partition(list, [](const ModelTensor& spec) { return !spec.is_matrix(); });
  return list;
}

ParameterLayout::ParameterLayout(const ModelConfig& config) : tensors_(tensor_list(config)) {
  for (const auto& spec : tensors_) {
    if (!spec.stacked) size_ = (size_ + kAlignment - 1) / kAlignment * kAlignment;
    offsets_.push_back(size_);
    if (!spec.is_matrix()) tables_ = offsets_.back() + spec.rows * spec.cols;
    parameters_ += spec.rows * spec.cols;
    size_ += spec.rows * spec.cols;
  }
  size_ = (size_ + kAlignment - 1) / kAlignment * kAlignment;
  // Tables, then matrices; slopes come after all others of their part.
  for (std::size_t first = 0; first < tensors_.size();) {
    std::size_t slope = first;
    while (slope < tensors_.size() && !tensors_[slope].slope) ++slope;
    if (slope == tensors_.size()) break;
    const std::size_t count = slope - first, last = slope + count - 1;
    sloped_.push_back({.begin = offsets_[first],
                       .slopes = offsets_[slope],
                       .size = offsets_[last] + tensors_[last].rows * tensors_[last].cols - offsets_[slope]});
    first = slope + count;
  }
}

std::size_t ParameterLayout::find(Index layer, std::string_view name) const {
  const std::string whole = layer < 0 ? std::string(name) : fmt::format("model.layers.{}.{}", layer, name);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == whole) return i;
  }
  fail(ErrorKind::Internal, "the model has no tensor {}", whole);
}

template <class T>
Weights weights_in(const ParameterLayout& layout, const T* matrices, const Wide<T>* tables) {
  Weights weights{.tensors = {}, .stacks = true};
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const auto& spec = layout.tensors()[i];
    if (spec.is_matrix())
      weights.tensors.emplace_back(dense(matrices + layout.offset(i), spec.rows, spec.cols));
    else
      weights.tensors.emplace_back(dense(tables + layout.offset(i), spec.rows, spec.cols));
  }
  return weights;
}

template <class W>
Parameters<W>::Parameters(const ModelConfig& config) : layout_(config) {
  try {
    values_.resize(static_cast<std::size_t>(layout_.size()));
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::OutOfMemory, "cannot allocate {:.2f} GB for the weights; use a smaller tier",
         static_cast<double>(layout_.size()) * sizeof(W) / 1e9);
  }
}

template <class W>
std::span<W> Parameters<W>::tensor(std::size_t index) {
  const auto& spec = layout_.tensors()[index];
  return {values_.data() + layout_.offset(index), static_cast<std::size_t>(spec.rows * spec.cols)};
}
template <class W>
std::span<const W> Parameters<W>::tensor(std::size_t index) const {
  const auto& spec = layout_.tensors()[index];
  return {values_.data() + layout_.offset(index), static_cast<std::size_t>(spec.rows * spec.cols)};
}

template Weights weights_in(const ParameterLayout&, const float*, const float*);
template Weights weights_in(const ParameterLayout&, const double*, const double*);
template Weights weights_in(const ParameterLayout&, const BFloat16*, const float*);
template class Parameters<float>;
template class Parameters<double>;

}  // namespace essh
