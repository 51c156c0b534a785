#pragma once
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/config/field.h"
#include "essh/tensor/matrix.h"

namespace essh {

// How a family's capacity can be cut: full sizes, exponents of the two-rate map, budgets of the named tiers T1, T2, ...
struct ElasticConfig {
  Index channels = 0;  // 0: not a family, one fixed capacity
  Index ffn = 0;
  double channel_exponent = 0.5;
  double ffn_exponent = 0.8;
  std::vector<double> tiers;
};

// The shape of one model folder, with the names of its config.json.
struct ModelConfig {
  std::string model_type = "essh";
  std::vector<std::string> architectures = {"EsshForCausalLM"};
  Index vocab_size = 0;
  Index hidden_size = 0;
  Index intermediate_size = 0;
  Index num_hidden_layers = 0;
  std::vector<Index> attention_layers;
  Index num_attention_heads = 0;
  Index head_dim = 64;
  Index sliding_window = 0;
  double rope_theta = 10000;
  Index spectral_channels = 32;
  Index spectral_modes = 8;
  Index channel_width = 0;
  double rms_norm_eps = 1e-5;
  double value_norm_eps = 1e-6;
  bool tie_word_embeddings = true;
  std::string torch_dtype = "float32";
  Index bos_token_id = 0;
  Index eos_token_id = 0;
  ElasticConfig elastic;

  bool is_attention(Index layer) const;
  Index attention_count() const { return static_cast<Index>(attention_layers.size()); }
};

template <class Visitor>
void fields(Visitor& visit, ElasticConfig& c) {
  visit("channels", c.channels,
        Field{.help = "spectral channels at full capacity", .min = 1, .max = 4096, .required = true});
  visit("ffn", c.ffn, Field{.help = "feed-forward width at full capacity", .min = 1, .max = 1 << 24, .required = true});
  visit("channel_exponent", c.channel_exponent,
        Field{.help = "exponent of the channel count in the budget", .min = 0, .max = 8});
  visit("ffn_exponent", c.ffn_exponent,
        Field{.help = "exponent of the feed-forward width in the budget", .min = 0, .max = 8});
  visit("tiers", c.tiers, Field{.help = "budgets of the named tiers, rising", .min = 0, .max = 1});
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
  visit("attention_layers", c.attention_layers,
        Field{.help = "blocks with window attention, from zero", .min = 0, .max = 4095, .required = true});
  visit("num_attention_heads", c.num_attention_heads, Field{.help = "heads", .min = 0, .max = 65536});
  visit("head_dim", c.head_dim, Field{.help = "width of a head", .min = 2, .max = 65536});
  visit("sliding_window", c.sliding_window, Field{.help = "positions an attention layer sees", .min = 0, .max = kMany});
  visit("rope_theta", c.rope_theta, Field{.help = "base of the rotary embedding", .min = 1, .max = 1e12});
  visit("spectral_channels", c.spectral_channels,
        Field{.help = "spectral channels", .min = 1, .max = 4096, .required = true});
  visit("spectral_modes", c.spectral_modes,
        Field{.help = "damped rotations per channel", .min = 1, .max = 1024, .required = true});
  visit("channel_width", c.channel_width,
        Field{.help = "values per channel", .min = 1, .max = 65536, .required = true});
  visit("rms_norm_eps", c.rms_norm_eps, Field{.help = "epsilon of RMSNorm", .min = 0, .max = 1});
  visit("value_norm_eps", c.value_norm_eps, Field{.help = "epsilon of the value blend", .min = 0, .max = 1});
  visit("tie_word_embeddings", c.tie_word_embeddings, Field{.help = "the embedding is the output head"});
  visit("torch_dtype", c.torch_dtype, Field{.help = "dtype of the stored matrices"});
  visit("bos_token_id", c.bos_token_id, Field{.help = "token before a text", .min = 0, .max = kMany});
  visit("eos_token_id", c.eos_token_id, Field{.help = "token after a text", .min = 0, .max = kMany});
  visit("elastic", c.elastic, Field{.help = "how the capacity can be cut"});
}

// Reads and checks a config.json; keys that other tools add and that mean nothing here are passed over.
ModelConfig parse_config(const Json& object, const std::string& place);
// Without the `elastic` object when the folder is not a family.
Json config_json(const ModelConfig& config);
// What the field ranges cannot say: sizes that must agree with each other and bounded totals.
void check_config(const ModelConfig& config, const std::string& place);

// "370m", "1.5b", "dna", "synthetic", "tiny".
ModelConfig preset(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace essh
