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
  c.num_attention_heads = 2;
  c.head_dim = 4;
  c.sliding_window = 5;
  c.spectral_channels = 3;
  c.spectral_modes = 2;
  c.channel_width = 3;
  c.elastic = {.channels = 3, .ffn = 7, .tiers = {}};
  return c;
}

// Every parameter drawn, none at a special value, so that every gradient counts.
template <class W>
void fill_randomly(Parameters<W>& parameters, std::uint64_t seed, double scale = 0.4) {
  Rng rng(seed);
  const auto& tensors = parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const double shift = tensors[i].role == Role::Gain                                                      ? 1
                         : tensors[i].initial == Initial::ClockBias || tensors[i].initial == Initial::Decay ? -2
                                                                                                            : 0;
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
