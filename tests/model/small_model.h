#pragma once
#include "essh/base/rng.h"
#include "essh/model/model.h"

namespace essh {

// Two spectral blocks around one with attention, every size odd or small.
inline ModelConfig small_config() {
  ModelConfig c;
  c.vocab_size = 11;
  c.hidden_size = 8;
  c.intermediate_size = 7;
  c.num_hidden_layers = 3;
  c.attention_layers = {1};
  c.sliding_attention = {.num_attention_heads = 2, .head_dim = 4};
  c.sliding_window = 5;
  c.spectral_channels = 3;
  c.spectral_modes = 2;
  c.channel_width = 3;
  c.elastic = two_rate(3, 7, {});
  return c;
}

// The same with full attention and grouped queries in place of the window.
inline ModelConfig small_transformer() {
  auto c = small_config();
  c.attention_layers = {};
  c.layer_types = {"spectral", "full_attention", "full_attention"};
  c.full_attention = {.num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 2};
  return c;
}

// Every parameter random, none at a special value, so that every gradient matters.
template <class W>
void fill_randomly(Parameters<W>& parameters, std::uint64_t seed, double scale = 0.4) {
  Rng rng(seed);
  const auto& tensors = parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& name = tensors[i].name;
    const bool slow = name.ends_with("clock_proj.bias") || name.ends_with("mixer.decay");
    const double shift = tensors[i].role == Role::Gain ? 1 : slow ? -2 : 0;
    for (auto& x : parameters.tensor(i)) x = static_cast<W>(shift + scale * rng.normal());
  }
}

inline std::vector<std::int32_t> random_tokens(std::size_t count, Index vocabulary, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary)));
  return tokens;
}

}  // namespace essh
