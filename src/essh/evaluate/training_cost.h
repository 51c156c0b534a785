#pragma once
#include <map>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/evaluate/throughput.h"

namespace essh {

// The paper's cost tables: device-hours to obtain several sizes from one shared family, from separate models of the
// same shapes, and from separate Transformers of about the same sizes. hours = tokens / rate / 3600.
struct CostOptions {
  std::vector<Tier> tiers = {};
  double tokens = 7.4e9;          // of pretraining, of the family and of every separate model
  double refine_tokens = 0.27e9;  // of shared refinement
  TrainingBench bench = {};       // `elastic` is the family's
  // Transformers with this one's depth and proportions, with the family's vocabulary; itself for a tier of its size to
  // 2 %. Empty layer_types: none.
  ModelConfig transformer = {};
  // Known rates in tokens per second by CostStage::key; these are not measured.
  std::map<std::string, double> rates = {};
};

struct CostStage {
  std::string key;    // "pretraining", "refinement", "T4", "transformer-T4"
  std::string stage;  // for readers: "shared pretraining", "separate T4"
  Index parameters = 0;
  double tokens = 0, rate = 0, hours = 0;
  bool given = false;  // the rate was not measured
};

struct CostReport {
  std::vector<CostStage> shared = {}, separate = {}, transformers = {};
  double shared_hours = 0, separate_hours = 0, transformer_hours = 0;
  double saving = 0, transformer_saving = 0;  // 1 - shared hours / hours of the separate models
};

// A Transformer of `parameters` or nearly so, with the depth and head size of `reference`. Width is a multiple of the
// head size and the feed-forward a multiple of 64, in a ratio as near to that of `reference` as the count allows.
ModelConfig transformer_near(const ModelConfig& reference, Index parameters);

// A name in `rates` that is no stage is an error.
CostReport measure_cost(const ModelConfig& config, Stream& stream, Precision precision, const CostOptions& options);

// {"model", "protocol", "device", "shared": [{"stage", "parameters", "tokens", "tokens_per_second", "measured",
// "hours"}], "separate": [...], "shared_hours", "separate_hours", "saving"}; with Transformers also "transformers",
// "transformer_hours" and "transformer_saving".
Json to_json(const CostReport& report, const std::string& model, const std::string& device);

}  // namespace essh
