#pragma once
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "essh/kernels/reference/cross_entropy.h"
#include "essh/kernels/reference/gates.h"
#include "essh/kernels/reference/mixer.h"
#include "essh/kernels/reference/rms_norm.h"
#include "essh/kernels/reference/rope.h"
#include "essh/kernels/reference/swiglu.h"
#include "essh/kernels/reference/window_attention.h"
#include "essh/model/tensors.h"

namespace essh::reference {

// The whole model token by token in scalars, written from the paper alone: slow, the reference for the fast model.
template <class S>
class ReferenceModel {
  using Row = std::vector<S>;
  using Rows = std::vector<Row>;

 public:
  ReferenceModel(const ModelConfig& config, const ParameterLayout& layout, Capacity capacity, std::vector<S> values)
      : config_(config), layout_(layout), capacity_(capacity), values_(std::move(values)) {}

  S& value(std::size_t element) { return values_[element]; }

  // Mean cross-entropy of the next tokens.
  S loss(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) const {
    Rows x;
    for (const auto token : tokens) x.push_back(row(-1, "model.embed_tokens.weight", token, config_.hidden_size));
    for (Index layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const Rows u = norm(x, row_of(layer, "input_layernorm.weight"));
      add(x, config_.kind(layer) == MixerKind::Spectral ? spectral(layer, u) : attention(layer, u));
      add(x, feed_forward(layer, norm(x, row_of(layer, "post_attention_layernorm.weight"))));
    }
    const Rows hidden = norm(x, row_of(-1, "model.norm.weight"));
    S sum = 0;
    for (std::size_t t = 0; t < hidden.size(); ++t) {
      Row logits;
      for (Index v = 0; v < config_.vocab_size; ++v)
        logits.push_back(dot(hidden[t], -1, "model.embed_tokens.weight", v));
      sum += cross_entropy(logits, static_cast<std::size_t>(targets[t]));
    }
    return sum / S(static_cast<double>(tokens.size()));
  }

 private:
  std::size_t tensor_of(Index layer, const std::string& name) const {
    const auto [place, missing] = found_.try_emplace({layer, name}, 0);
    if (missing) place->second = layout_.find(layer, name);
    return place->second;
  }
  S at(Index layer, const std::string& name, Index r, Index c = 0) const {
    const auto tensor = tensor_of(layer, name);
    return values_[static_cast<std::size_t>(layout_.offset(tensor) + r * layout_.tensors()[tensor].cols + c)];
  }
  Row row(Index layer, const std::string& name, Index r, Index cols) const {
    Row out;
    for (Index c = 0; c < cols; ++c) out.push_back(at(layer, name, r, c));
    return out;
  }
  Row row_of(Index layer, const std::string& name) const {
    Row out;
    for (Index r = 0; r < config_.hidden_size; ++r) out.push_back(at(layer, name, r));
    return out;
  }
  S dot(const Row& x, Index layer, const std::string& name, Index r) const {
    const auto tensor = tensor_of(layer, name);
    const S* weight = values_.data() + layout_.offset(tensor) + r * layout_.tensors()[tensor].cols;
    S sum = 0;
    for (std::size_t c = 0; c < x.size(); ++c) sum += weight[c] * x[c];
    return sum;
  }
  Rows linear(const Rows& x, Index layer, const std::string& name, Index rows) const {
    Rows out;
    for (const auto& one : x) {
      Row y;
      for (Index r = 0; r < rows; ++r) y.push_back(dot(one, layer, name, r));
      out.push_back(y);
    }
    return out;
  }
  Rows norm(const Rows& x, const Row& gain) const {
    Rows out;
    for (const auto& one : x) out.push_back(rms_norm(one, gain, config_.rms_norm_eps));
    return out;
  }
  static void add(Rows& x, const Rows& y) {
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
    }
  }

  Rows spectral(Index layer, const Rows& u) const {
    const Index modes = config_.spectral_modes, width = config_.channel_width, channels = capacity_.channels;
    const Rows v0 = linear(u, layer, "mixer.value_proj.weight", channels * width);
    const Rows write = linear(u, layer, "mixer.write_proj.weight", channels * modes);
    const Rows read = linear(u, layer, "mixer.read_proj.weight", channels * modes);
    const Rows clocks = linear(u, layer, "mixer.clock_proj.weight", channels * modes);
    Rows z(u.size());
    for (Index k = 0; k < channels; ++k) {
      ChannelInput<S> in;
      std::vector<Mode<S>> table;
      for (Index i = 0; i < modes; ++i) {
        table.push_back({at(layer, "mixer.decay", k, i), at(layer, "mixer.frequency", k, i),
                         at(layer, "mixer.readout_cos", k, i), at(layer, "mixer.readout_sin", k, i),
                         at(layer, "mixer.zero_lag", k, i)});
      }
      for (std::size_t t = 0; t < u.size(); ++t) {
        const Row values(v0[t].begin() + k * width, v0[t].begin() + (k + 1) * width);
        in.v.push_back(value_blend(values, at(layer, "mixer.value_blend", k), config_.value_norm_eps));
        Row w, r, c;
        for (Index i = 0; i < modes; ++i) {
          const auto at_mode = static_cast<std::size_t>(k * modes + i);
          w.push_back(gate(write[t][at_mode], at(layer, "mixer.write_proj.bias", k * modes + i)));
          r.push_back(gate(read[t][at_mode], at(layer, "mixer.read_proj.bias", k * modes + i)));
          c.push_back(clock(clocks[t][at_mode], at(layer, "mixer.clock_proj.bias", k * modes + i)));
        }
        in.write.push_back(w);
        in.read.push_back(r);
        in.clock.push_back(c);
      }
      auto state = zero_state<S>(static_cast<std::size_t>(modes), static_cast<std::size_t>(width));
      const auto out = selective_recurrence(in, table, state);
      for (std::size_t t = 0; t < u.size(); ++t) z[t].insert(z[t].end(), out[t].begin(), out[t].end());
    }
    Rows y = linear(z, layer, "mixer.out_proj.weight", config_.hidden_size);
    for (auto& one : y) {
      for (auto& value : one) value = value / S(std::sqrt(static_cast<double>(channels)));
    }
    return y;
  }

  Rows attention(Index layer, const Rows& u) const {
    const bool sliding = config_.kind(layer) == MixerKind::SlidingAttention;
    const auto& sizes = sliding ? config_.sliding_attention : config_.full_attention;
    const std::size_t window = sliding ? static_cast<std::size_t>(config_.sliding_window) : u.size();
    const Index dim = sizes.head_dim, heads = sizes.num_attention_heads, groups = sizes.key_value_heads();
    const Rows q = linear(u, layer, "self_attn.q_proj.weight", heads * dim),
               k = linear(u, layer, "self_attn.k_proj.weight", groups * dim),
               v = linear(u, layer, "self_attn.v_proj.weight", groups * dim);
    Rows out(u.size());
    for (Index h = 0; h < heads; ++h) {
      const auto head = [&](const Rows& x, Index number, bool turn) {
        Rows part;
        for (std::size_t t = 0; t < x.size(); ++t) {
          Row one(x[t].begin() + number * dim, x[t].begin() + (number + 1) * dim);
          part.push_back(turn ? rope(one, static_cast<double>(t), sizes.rope_theta) : one);
        }
        return part;
      };
      const Index group = h / (heads / groups);
      const auto attended = window_attention(head(q, h, true), head(k, group, true), head(v, group, false), 0, window);
      for (std::size_t t = 0; t < u.size(); ++t)
        out[t].insert(out[t].end(), attended.out[t].begin(), attended.out[t].end());
    }
    return linear(out, layer, "self_attn.o_proj.weight", config_.hidden_size);
  }

  Rows feed_forward(Index layer, const Rows& u) const {
    const Rows gates = linear(u, layer, "mlp.gate_proj.weight", capacity_.ffn),
               up = linear(u, layer, "mlp.up_proj.weight", capacity_.ffn);
    Rows hidden;
    for (std::size_t t = 0; t < u.size(); ++t) {
      Row one;
      for (std::size_t i = 0; i < gates[t].size(); ++i) one.push_back(swiglu(gates[t][i], up[t][i]));
      hidden.push_back(one);
    }
    return linear(hidden, layer, "mlp.down_proj.weight", config_.hidden_size);
  }

  ModelConfig config_;
  const ParameterLayout& layout_;
  Capacity capacity_;
  std::vector<S> values_;
  mutable std::map<std::pair<Index, std::string>, std::size_t> found_;
};

}  // namespace essh::reference
