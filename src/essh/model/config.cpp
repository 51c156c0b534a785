#include "essh/model/config.h"

#include <algorithm>
#include <array>

#include "essh/config/fields.h"
#include "essh/model/capacity.h"

namespace essh {
namespace {

ModelConfig family(Index vocabulary, Index width, Index ffn, Index layers, std::vector<Index> attention,
                   Index channel_width, Index window) {
  ModelConfig c;
  c.vocab_size = vocabulary;
  c.hidden_size = width;
  c.intermediate_size = ffn;
  c.num_hidden_layers = layers;
  c.attention_layers = std::move(attention);
  c.head_dim = std::min<Index>(64, width);
  c.num_attention_heads = c.attention_layers.empty() ? 0 : width / c.head_dim;
  c.sliding_window = c.attention_layers.empty() ? 0 : window;
  c.channel_width = channel_width;
  c.elastic = {.channels = c.spectral_channels, .ffn = ffn, .tiers = deployment_budgets()};
  return c;
}

}  // namespace

bool ModelConfig::is_attention(Index layer) const {
  return std::find(attention_layers.begin(), attention_layers.end(), layer) != attention_layers.end();
}

ModelConfig parse_config(const Json& object, const std::string& place) {
  static constexpr std::array kForeign = {"transformers_version", "_name_or_path", "dtype", "use_cache",
                                          "pad_token_id",         "auto_map"};
  if (!object.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
  Json known = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (std::find(kForeign.begin(), kForeign.end(), key) == kForeign.end()) known[key] = value;
  }
  ModelConfig config;
  read_fields(config, known, place);
  check_config(config, place);
  if (config.elastic.channels > 0 && config.elastic.tiers.empty()) config.elastic.tiers = deployment_budgets();
  return config;
}

Json config_json(const ModelConfig& config) {
  Json object = write_fields(config);
  if (config.elastic.channels == 0) object.erase("elastic");
  return object;
}

void check_config(const ModelConfig& c, const std::string& place) {
  const auto require = [&](bool good, const std::string& problem) {
    if (!good) fail(ErrorKind::BadFile, "{}: {}", place, problem);
  };
  require(c.model_type == "essh",
          "model_type is \"" + c.model_type.substr(0, 40) + "\", this program runs \"essh\" models");
  require(c.tie_word_embeddings, "tie_word_embeddings must be true: the embedding is the output head");
  Index previous = -1;
  for (const Index layer : c.attention_layers) {
    require(layer > previous && layer < c.num_hidden_layers,
            "attention_layers must rise and lie below num_hidden_layers");
    previous = layer;
  }
  if (!c.attention_layers.empty()) {
    require(c.num_attention_heads * c.head_dim == c.hidden_size,
            "num_attention_heads * head_dim must equal hidden_size");
    require(c.head_dim % 2 == 0, "head_dim must be even for the rotary embedding");
    require(c.sliding_window >= 1, "sliding_window must be at least 1 when there are attention layers");
  }
  require(c.bos_token_id < c.vocab_size && c.eos_token_id < c.vocab_size,
          "bos_token_id and eos_token_id must lie below vocab_size");
  if (c.elastic.channels > 0) {
    require(c.elastic.channels == c.spectral_channels && c.elastic.ffn == c.intermediate_size,
            "elastic.channels and elastic.ffn must equal spectral_channels and intermediate_size of the family");
    require(std::is_sorted(c.elastic.tiers.begin(), c.elastic.tiers.end()), "elastic.tiers must rise");
    require(c.elastic.tiers.empty() || c.elastic.tiers.front() > 0, "elastic.tiers must be above zero");
  }
  // Every product of sizes that the program forms stays far below 2^63 and no folder asks for more than 2^40
  // parameters.
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
  return {"tiny", "370m", "1.5b", "dna", "synthetic"};
}

ModelConfig preset(const std::string& name) {
  if (name == "370m") {
    auto c = family(50304, 896, 4608, 22, {12, 17, 21}, 28, 2048);
    c.bos_token_id = c.eos_token_id = 50256;
    return c;
  }
  if (name == "1.5b") {
    auto c = family(128256, 2048, 5632, 28, {15, 22, 27}, 64, 2048);
    c.bos_token_id = 128000;
    c.eos_token_id = 128001;
    return c;
  }
  if (name == "dna") return family(12, 64, 256, 4, {}, 8, 0);
  if (name == "synthetic") return family(8192, 128, 512, 2, {1}, 24, 4096);
  if (name == "tiny") {
    // Sixteen channels keep eight values each at this width.
    auto c = family(2048, 128, 512, 4, {2}, 8, 256);
    c.spectral_channels = c.elastic.channels = 16;
    return c;
  }
  const auto names = preset_names();
  fail(ErrorKind::Usage, "no preset is called \"{}\"{} (there are {})", name.substr(0, 60), suggestion(name, names),
       fmt::join(names, ", "));
}

}  // namespace essh
