#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/config/field.h"
#include "essh/model/capacity.h"

namespace essh {

// The mixers a block can have, by their names in `layer_types`: "spectral", "sliding_attention", "full_attention".
enum class MixerKind { Spectral, SlidingAttention, FullAttention };
std::string_view mixer_name(MixerKind kind);

// Sizes of the attention of one kind of layer, with Hugging Face's names.
struct AttentionSizes {
  Index num_attention_heads = 0;
  Index num_key_value_heads = 0;  // 0: as many as heads
  Index head_dim = 64;
  double rope_theta = 10000;

  Index key_value_heads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads; }
};

// Quantisation of a folder's matrices (store/quantisation.h). An empty format means not quantised.
struct QuantizationConfig {
  std::string quant_method;  // always essh
  std::string format;        // q8, q4 or fp8
  Index group_size = 0;      // elements per scale
};

// The shape of one model folder, with the names of its config.json. Every kind of mixer has its sizes: spectral mixers
// spectral_* and channel_width, sliding attention num_attention_heads to sliding_window, full attention an object.
struct ModelConfig {
  std::string model_type = "essh";
  std::vector<std::string> architectures = {"EsshForCausalLM"};
  Index vocab_size = 0;
  Index hidden_size = 0;
  Index intermediate_size = 0;
  Index num_hidden_layers = 0;
  std::vector<std::string> layer_types = {};  // one kind per layer; empty: by attention_layers
  std::vector<Index> attention_layers = {};   // sliding attention, in folders without layer_types
  AttentionSizes sliding_attention = {};
  Index sliding_window = 0;
  AttentionSizes full_attention = {};
  Index spectral_channels = 32;
  Index spectral_modes = 8;
  Index channel_width = 0;
  double rms_norm_eps = 1e-5;
  double value_norm_eps = 1e-6;
  bool tie_word_embeddings = true;
  bool residual_in_fp32 = false;  // also where the arithmetic is bf16
  std::string torch_dtype = "float32";
  QuantizationConfig quantization = {};
  Index bos_token_id = 0;
  Index eos_token_id = 0;
  ElasticConfig elastic = {};

  MixerKind kind(Index layer) const;
  bool has(MixerKind kind) const;
};

template <class Visitor>
void fields(Visitor& visit, AttentionSizes& a) {
  visit("num_attention_heads", a.num_attention_heads, Field{.help = "heads", .min = 0, .max = 65536});
  visit("num_key_value_heads", a.num_key_value_heads,
        Field{.help = "heads of keys and values; 0: as many as heads", .min = 0, .max = 65536});
  visit("head_dim", a.head_dim, Field{.help = "width of a head", .min = 2, .max = 65536});
  visit("rope_theta", a.rope_theta, Field{.help = "base of the rotary embedding", .min = 1, .max = 1e12});
}

template <class Visitor>
void fields(Visitor& visit, QuantizationConfig& q) {
  visit("quant_method", q.quant_method, Field{.help = "always essh"});
  visit("format", q.format, Field{.help = "q8, q4 or fp8"});
  visit("group_size", q.group_size, Field{.help = "neighbours that share a scale", .min = 0, .max = 1 << 20});
}

template <class Visitor>
void fields(Visitor& visit, ModelConfig& c) {
  constexpr double kMany = 1 << 24;
  visit("architectures", c.architectures, Field{.help = "class names for other tools"});
  visit("model_type", c.model_type, Field{.help = "always essh", .required = true});
  visit("vocab_size", c.vocab_size,
        Field{.help = "entries of the vocabulary", .min = 1, .max = kMany, .required = true});
  visit("hidden_size", c.hidden_size, Field{.help = "residual width", .min = 1, .max = kMany, .required = true});
  visit("intermediate_size", c.intermediate_size,
        Field{.help = "feed-forward width", .min = 1, .max = kMany, .required = true});
  visit("num_hidden_layers", c.num_hidden_layers, Field{.help = "blocks", .min = 1, .max = 4096, .required = true});
  visit("layer_types", c.layer_types, Field{.help = "spectral, sliding_attention or full_attention for each block"});
  visit("attention_layers", c.attention_layers,
        Field{.help = "blocks with sliding attention, from zero", .min = 0, .max = 4095});
  fields(visit, c.sliding_attention);
  visit("sliding_window", c.sliding_window, Field{.help = "positions sliding attention sees", .min = 0, .max = kMany});
  visit("full_attention", c.full_attention, Field{.help = "sizes of full attention"});
  visit("spectral_channels", c.spectral_channels, Field{.help = "spectral channels", .min = 1, .max = 4096});
  visit("spectral_modes", c.spectral_modes, Field{.help = "damped rotations per channel", .min = 1, .max = 1024});
  visit("channel_width", c.channel_width, Field{.help = "values per channel", .min = 0, .max = 65536});
  visit("rms_norm_eps", c.rms_norm_eps, Field{.help = "epsilon of RMSNorm", .min = 0, .max = 1});
  visit("value_norm_eps", c.value_norm_eps, Field{.help = "epsilon of the value blend", .min = 0, .max = 1});
  visit("tie_word_embeddings", c.tie_word_embeddings, Field{.help = "the embedding is the output head"});
  visit("residual_in_fp32", c.residual_in_fp32,
        Field{.help = "the residual stream is float32, also where the arithmetic is bf16"});
  visit("torch_dtype", c.torch_dtype, Field{.help = "dtype of the stored matrices"});
  visit("quantization_config", c.quantization, Field{.help = "how matrices are quantised"});
  visit("bos_token_id", c.bos_token_id, Field{.help = "token before a text", .min = 0, .max = kMany});
  visit("eos_token_id", c.eos_token_id, Field{.help = "token after a text", .min = 0, .max = kMany});
  visit("elastic", c.elastic, Field{.help = "how the capacity can be cut"});
}

// Reads and checks a config.json; irrelevant keys of other tools are ignored.
ModelConfig parse_config(const Json& object, const std::string& place);
// The keys that this model has: sizes of its kinds of layers only, `elastic` for a family only. A two-rate map is
// written as {"channels", "ffn", "channel_exponent", "ffn_exponent", "tiers"}, any other by axis.
Json config_json(const ModelConfig& config);
// Checks beyond field ranges: consistency of sizes, and bounded totals.
void check_config(const ModelConfig& config, const std::string& place);

// A built-in model by name (`preset_names`).
ModelConfig preset(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace essh
