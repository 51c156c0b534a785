#include "essh/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "essh/base/utf8.h"
#include "essh/config/fields.h"

namespace essh {
namespace {

constexpr std::array<std::pair<std::string_view, MixerKind>, 3> kKinds = {
    {{"spectral", MixerKind::Spectral},
     {"sliding_attention", MixerKind::SlidingAttention},
     {"full_attention", MixerKind::FullAttention}}};

// The two-rate map as written in config.json.
struct TwoRate {
  Index channels = 0, ffn = 0;
  double channel_exponent = 0.5, ffn_exponent = 0.8;
  std::vector<double> tiers = {};
  bool slopes = false;
};

template <class Visitor>
void fields(Visitor& visit, TwoRate& r) {
  visit("channels", r.channels, Field{.min = 1, .max = 4096, .required = true});
  visit("ffn", r.ffn, Field{.min = 1, .max = 1 << 24, .required = true});
  visit("channel_exponent", r.channel_exponent, Field{.min = 0, .max = 8});
  visit("ffn_exponent", r.ffn_exponent, Field{.min = 0, .max = 8});
  visit("tiers", r.tiers, Field{.min = 0, .max = 1});
  visit("slopes", r.slopes, Field{});
}

bool by_axis(const Json& elastic) {
  return elastic.is_object() && ((elastic.contains("channels") && elastic["channels"].is_object()) ||
                                 (elastic.contains("ffn") && elastic["ffn"].is_object()));
}

AttentionSizes heads_of_64(Index width) {
  const Index dim = std::min<Index>(64, width);
  return {.num_attention_heads = width / dim, .head_dim = dim};
}

ModelConfig family(Index vocabulary, Index width, Index ffn, Index layers, std::vector<Index> attention,
                   Index channel_width, Index window) {
  ModelConfig c;
  c.vocab_size = vocabulary;
  c.hidden_size = width;
  c.intermediate_size = ffn;
  c.num_hidden_layers = layers;
  c.attention_layers = std::move(attention);
  if (!c.attention_layers.empty()) {
    c.sliding_attention = heads_of_64(width);
    c.sliding_window = window;
  }
  c.channel_width = channel_width;
  c.elastic = two_rate(c.spectral_channels, ffn, deployment_budgets());
  return c;
}

ModelConfig transformer(Index vocabulary, Index width, Index ffn, Index layers) {
  ModelConfig c;
  c.vocab_size = vocabulary;
  c.hidden_size = width;
  c.intermediate_size = ffn;
  c.num_hidden_layers = layers;
  c.layer_types.assign(static_cast<std::size_t>(layers), "full_attention");
  c.full_attention = heads_of_64(width);
  return c;
}

// Special tokens of the GPT-2 and Llama-3 vocabularies.
ModelConfig with_gpt2_tokens(ModelConfig c) {
  c.bos_token_id = c.eos_token_id = 50256;
  return c;
}
ModelConfig with_llama3_tokens(ModelConfig c) {
  c.bos_token_id = 128000;
  c.eos_token_id = 128001;
  return c;
}

struct Preset {
  const char* name;
  ModelConfig (*make)();
};
constexpr std::array kPresets = {
    Preset{"tiny",
           [] {
             // At this width, sixteen channels have eight values each.
             auto c = family(2048, 128, 512, 4, {2}, 8, 256);
             c.spectral_channels = c.elastic.channels.full = 16;
             return c;
           }},
    Preset{"370m",
           [] {
             return with_gpt2_tokens(family(50304, 896, 4608, 22, {12, 17, 21}, 28, 2048));
           }},
    Preset{"1.5b",
           [] {
             return with_llama3_tokens(family(128256, 2048, 5632, 28, {15, 22, 27}, 64, 2048));
           }},
    Preset{"dna", [] { return family(12, 64, 256, 4, {}, 8, 0); }},
    Preset{"synthetic", [] { return family(8192, 128, 512, 2, {1}, 24, 4096); }},
    Preset{"transformer-370m", [] { return with_gpt2_tokens(transformer(50304, 896, 4224, 22)); }},
    Preset{"transformer-1.5b", [] { return with_llama3_tokens(transformer(128256, 2048, 4672, 28)); }},
    Preset{"matformer-370m",
           [] {
             auto c = with_gpt2_tokens(transformer(50304, 896, 4224, 22));
             c.elastic = {.ffn = {.full = 4224, .exponent = 1, .multiple = 64, .rounding = "down"},
                          .tiers = deployment_budgets()};
             return c;
           }},
};

}  // namespace

std::string_view mixer_name(MixerKind kind) {
  return kKinds[static_cast<std::size_t>(kind)].first;
}

MixerKind ModelConfig::kind(Index layer) const {
  if (layer_types.empty()) {
    return std::ranges::find(attention_layers, layer) != attention_layers.end() ? MixerKind::SlidingAttention
                                                                                : MixerKind::Spectral;
  }
  if (layer >= std::ssize(layer_types))
    fail(ErrorKind::BadFile, "layer_types must name one mixer for each of num_hidden_layers");
  const auto& name = layer_types[static_cast<std::size_t>(layer)];
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return kind;
  }
  fail(ErrorKind::BadFile, "layer_types: {} is none of spectral, sliding_attention, full_attention", in_quotes(name));
}

bool ModelConfig::has(MixerKind wanted) const {
  for (Index layer = 0; layer < num_hidden_layers; ++layer) {
    if (kind(layer) == wanted) return true;
  }
  return false;
}

ModelConfig parse_config(const Json& object, const std::string& place) {
  static constexpr std::array kForeign = {"transformers_version", "_name_or_path", "dtype", "use_cache",
                                          "pad_token_id",         "auto_map"};
  if (!object.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
  Json known = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (std::find(kForeign.begin(), kForeign.end(), key) == kForeign.end()) known[key] = value;
  }
  TwoRate rates;
  const auto elastic = known.find("elastic");
  const bool is_two_rate = elastic != known.end() && !by_axis(*elastic);
  if (is_two_rate) {
    read_fields(rates, *elastic, place + ": elastic");
    known.erase("elastic");
  }
  if (!known.contains("layer_types") && !known.contains("attention_layers"))
    fail(ErrorKind::BadFile, "{}: layer_types is missing", place);
  ModelConfig config;
  read_fields(config, known, place);
  for (const char* key : {"spectral_channels", "spectral_modes", "channel_width"}) {
    if (config.has(MixerKind::Spectral) && !known.contains(key))
      fail(ErrorKind::BadFile, "{}: {} is missing", place, key);
  }
  if (is_two_rate) {
    config.elastic = two_rate(rates.channels, rates.ffn, rates.tiers, rates.channel_exponent, rates.ffn_exponent);
    config.elastic.slopes = rates.slopes;
  }
  check_config(config, place);
  if (config.elastic.is_family() && config.elastic.tiers.empty()) config.elastic.tiers = deployment_budgets();
  return config;
}

Json config_json(const ModelConfig& config) {
  auto written = config;
  written.layer_types.clear();
  written.attention_layers.clear();
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
    written.layer_types.emplace_back(mixer_name(config.kind(layer)));
    if (config.kind(layer) == MixerKind::SlidingAttention) written.attention_layers.push_back(layer);
  }
  Json object = write_fields(written);
  const auto drop = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys) object.erase(key);
  };
  if (!config.has(MixerKind::Spectral))
    drop({"spectral_channels", "spectral_modes", "channel_width", "value_norm_eps"});
  if (!config.has(MixerKind::SlidingAttention) && !config.has(MixerKind::Spectral))
    drop({"attention_layers", "num_attention_heads", "head_dim", "rope_theta", "sliding_window"});
  if (config.sliding_attention.num_key_value_heads == 0) drop({"num_key_value_heads"});
  if (!config.has(MixerKind::FullAttention)) drop({"full_attention"});
  if (!config.residual_in_fp32) drop({"residual_in_fp32"});
  if (config.quantization.format.empty()) drop({"quantization_config"});
  const auto& elastic = config.elastic;
  const TwoRate rates{elastic.channels.full, elastic.ffn.full, elastic.channels.exponent,
                      elastic.ffn.exponent,  elastic.tiers,    elastic.slopes};
  const auto as_two_rate = two_rate(rates.channels, rates.ffn, rates.tiers, rates.channel_exponent, rates.ffn_exponent);
  if (!elastic.is_family())
    drop({"elastic"});
  else if (elastic.channels.full > 0 && elastic.channels == as_two_rate.channels && elastic.ffn == as_two_rate.ffn)
    object["elastic"] = write_fields(rates);
  if (elastic.is_family() && !elastic.slopes) object["elastic"].erase("slopes");
  return object;
}

void check_config(const ModelConfig& c, const std::string& place) {
  const auto require = [&](bool good, const std::string& problem) {
    if (!good) fail(ErrorKind::BadFile, "{}: {}", place, problem);
  };
  require(c.model_type == "essh",
          "model_type is \"" + c.model_type.substr(0, 40) + "\", this program runs \"essh\" models");
  const auto& q = c.quantization;
  require(q.format.empty() || ((q.format == "q8" || q.format == "q4" || q.format == "fp8") && q.group_size == 32),
          "quantization_config: format \"" + q.format.substr(0, 20) + "\" with groups of " +
              std::to_string(q.group_size) + "; q8, q4 and fp8 with groups of 32 can be read");
  require(c.tie_word_embeddings, "tie_word_embeddings must be true: the embedding is the output head");
  require(c.layer_types.empty() || std::ssize(c.layer_types) == c.num_hidden_layers,
          "layer_types must name one mixer for each of num_hidden_layers");
  Index previous = -1;
  for (const Index layer : c.attention_layers) {
    require(layer > previous && layer < c.num_hidden_layers,
            "attention_layers must rise and lie below num_hidden_layers");
    require(c.kind(layer) == MixerKind::SlidingAttention,
            "attention_layers and layer_types must name the same layers of sliding attention");
    previous = layer;
  }
  const auto require_heads = [&](const AttentionSizes& a, const char* name) {
    require(a.num_attention_heads * a.head_dim == c.hidden_size,
            fmt::format("num_attention_heads * head_dim of {} must equal hidden_size", name));
    require(a.head_dim % 2 == 0, "head_dim must be even for the rotary embedding");
    require(a.num_attention_heads % a.key_value_heads() == 0,
            "num_attention_heads must be a multiple of num_key_value_heads");
  };
  if (c.has(MixerKind::SlidingAttention)) {
    require_heads(c.sliding_attention, "sliding attention");
    require(c.sliding_window >= 1, "sliding_window must be at least 1 when there are attention layers");
  }
  if (c.has(MixerKind::FullAttention)) require_heads(c.full_attention, "full_attention");
  require(!c.has(MixerKind::Spectral) || c.channel_width >= 1, "channel_width must be at least 1");
  require(c.bos_token_id < c.vocab_size && c.eos_token_id < c.vocab_size,
          "bos_token_id and eos_token_id must lie below vocab_size");
  const auto& elastic = c.elastic;
  require(!elastic.slopes || elastic.is_family(), "elastic.slopes needs elastic.channels or elastic.ffn");
  if (elastic.is_family()) {
    const auto full = full_capacity(c);
    require((elastic.channels.full == 0 || elastic.channels.full == full.channels) &&
                (elastic.ffn.full == 0 || elastic.ffn.full == full.ffn),
            "elastic.channels and elastic.ffn must equal spectral_channels and intermediate_size of the family");
    for (const auto* axis : {&elastic.channels, &elastic.ffn}) {
      require(axis->rounding == "nearest" || axis->rounding == "down", "elastic rounding must be nearest or down");
    }
    require(std::is_sorted(elastic.tiers.begin(), elastic.tiers.end()), "elastic.tiers must rise");
    require(elastic.tiers.empty() || elastic.tiers.front() > 0, "elastic.tiers must be above zero");
  }
  // Keeps every product of sizes far below 2^63 and parameters at most 2^40.
  const double width = static_cast<double>(c.hidden_size);
  const double channel =
      static_cast<double>(c.spectral_channels) *
      (2 * width * static_cast<double>(c.channel_width) + 3 * static_cast<double>(c.spectral_modes) * (width + 3));
  const double total = static_cast<double>(c.vocab_size) * width +
                       static_cast<double>(c.num_hidden_layers) *
                           (channel + 4 * width * width + 3 * width * static_cast<double>(c.intermediate_size));
  require(total < 0x1p40, "the sizes ask for more than 2^40 parameters");
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

ModelConfig preset(const std::string& name) {
  for (const auto& preset : kPresets) {
    if (preset.name == name) return preset.make();
  }
  const auto names = preset_names();
  fail(ErrorKind::Usage, "no preset is called \"{}\"{} (there are {})", name.substr(0, 60), suggestion(name, names),
       fmt::join(names, ", "));
}

}  // namespace essh
