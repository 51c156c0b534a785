#include "essh/store/foreign_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "essh/base/error.h"
#include "essh/base/json.h"

namespace essh {
namespace {

// Keys that record how a model was made, stored or trained.
constexpr std::array kHarmless = {"_attn_implementation",
                                  "_commit_hash",
                                  "_name_or_path",
                                  "attention_dropout",
                                  "auto_map",
                                  "hidden_dropout",
                                  "id2label",
                                  "initializer_range",
                                  "label2id",
                                  "max_position_embeddings",
                                  "output_attentions",
                                  "output_hidden_states",
                                  "pad_token_id",
                                  "pretraining_tp",
                                  "problem_type",
                                  "return_dict",
                                  "transformers_version",
                                  "use_cache"};

// For all of these, null means "not used".
bool computes_as_we_do(const std::string& key, const Json& value) {
  if (value.is_null()) return true;
  if (key == "hidden_act") return value == "silu" || value == "swish";
  return value == false;
}
constexpr std::array kChecked = {"attention_bias",      "cross_attention", "hidden_act",  "is_encoder_decoder",
                                 "quantization_config", "mlp_bias",        "rope_scaling"};

}  // namespace

Json without_foreign_keys(const Json& config, const std::string& place) {
  if (!config.is_object()) return config;
  Json kept = Json::object();
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(kHarmless, key) != kHarmless.end()) continue;
    const bool our_quantisation = key == "quantization_config" && value.is_object() && value.contains("quant_method") &&
                                  value["quant_method"] == "essh";
    if (our_quantisation || std::ranges::find(kChecked, key) == kChecked.end()) {
      kept[key] = value;
    } else if (!computes_as_we_do(key, value)) {
      fail(ErrorKind::Unsupported, "{}: {} is {}; this program runs models with {}", place, key,
           to_text(value).substr(0, 60), key == "hidden_act" ? "\"silu\"" : "none or false");
    }
  }
  // Newer versions of transformers write dtype for torch_dtype, and either may be prefixed with "torch.".
  if (kept.contains("dtype") && !kept.contains("torch_dtype")) kept["torch_dtype"] = kept["dtype"];
  kept.erase("dtype");
  if (const auto dtype = kept.find("torch_dtype"); dtype != kept.end() && dtype->is_string()) {
    const auto name = dtype->get<std::string>();
    if (name.starts_with("torch.")) kept["torch_dtype"] = name.substr(6);
  }
  return kept;
}

}  // namespace essh
