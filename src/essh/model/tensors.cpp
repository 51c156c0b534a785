#include "essh/model/tensors.h"

#include <algorithm>

#include "essh/model/mixer.h"

namespace essh {
namespace {

// Tensors start on a 256-byte border in float32, so slices of bf16 copies stay aligned for 16-byte loads too.
constexpr Index kAlignment = 64;

Index kept(Index full, Axis axis, Capacity capacity) {
  switch (axis.elastic) {
    case Elastic::Fixed:
      return full;
    case Elastic::Channels:
      return capacity.channels * axis.unit;
    case Elastic::Ffn:
      return capacity.ffn * axis.unit;
  }
  return full;
}

}  // namespace

Index ModelTensor::kept_rows(Capacity capacity) const {
  return kept(rows, row_axis, capacity);
}
Index ModelTensor::kept_cols(Capacity capacity) const {
  return kept(cols, col_axis, capacity);
}

std::vector<Index> ModelTensor::shape() const {
  return rank == 1 ? std::vector<Index>{rows} : std::vector<Index>{rows, cols};
}
std::vector<Index> ModelTensor::shape(Capacity capacity) const {
  return rank == 1 ? std::vector<Index>{kept_rows(capacity)}
                   : std::vector<Index>{kept_rows(capacity), kept_cols(capacity)};
}

std::vector<ModelTensor> tensor_list(const ModelConfig& c) {
  const Index d = c.hidden_size, n = c.intermediate_size;
  const Axis ffn{Elastic::Ffn, 1};
  std::vector<ModelTensor> list;
  const auto gain = [&](std::string name, Index layer) {
    list.push_back(
        {.name = std::move(name), .layer = layer, .rank = 1, .rows = d, .initial = Initial::One, .role = Role::Gain});
  };
  list.push_back({.name = "model.embed_tokens.weight", .rows = c.vocab_size, .cols = d, .role = Role::Embedding});
  for (Index layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    gain(prefix + "input_layernorm.weight", layer);
    for (auto& spec : mixer_tensors(c, layer)) {
      spec.name = prefix + spec.name;
      spec.layer = layer;
      list.push_back(std::move(spec));
    }
    gain(prefix + "post_attention_layernorm.weight", layer);
    list.push_back({.name = prefix + "mlp.gate_proj.weight", .layer = layer, .rows = n, .cols = d, .row_axis = ffn});
    list.push_back({.name = prefix + "mlp.up_proj.weight", .layer = layer, .rows = n, .cols = d, .row_axis = ffn});
    list.push_back({.name = prefix + "mlp.down_proj.weight",
                    .layer = layer,
                    .rows = d,
                    .cols = n,
                    .col_axis = ffn,
                    .initial = Initial::NormalOut});
  }
  gain("model.norm.weight", -1);
  // Small tensors come first: they stay in float32 where the matrices are kept in another type.
  std::ranges::stable_partition(list, [](const ModelTensor& spec) { return !spec.is_matrix(); });
  return list;
}

ParameterLayout::ParameterLayout(const ModelConfig& config) : tensors_(tensor_list(config)) {
  for (const auto& spec : tensors_) {
    offsets_.push_back(size_);
    if (!spec.is_matrix()) tables_ = offsets_.back() + spec.rows * spec.cols;
    parameters_ += spec.rows * spec.cols;
    size_ += (spec.rows * spec.cols + kAlignment - 1) / kAlignment * kAlignment;
  }
}

std::size_t ParameterLayout::find(Index layer, std::string_view name) const {
  const std::string whole = layer < 0 ? std::string(name) : fmt::format("model.layers.{}.{}", layer, name);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == whole) return i;
  }
  fail(ErrorKind::Internal, "the model has no tensor {}", whole);
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

template class Parameters<float>;
template class Parameters<double>;

}  // namespace essh
