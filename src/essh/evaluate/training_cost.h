#pragma once
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/evaluate/throughput.h"

namespace essh {

// The paper's amortisation table: hours on one device to obtain several sizes, from one shared family or from separate
// models, each as its tokens divided by its measured rate.
struct CostOptions {
  std::vector<Tier> tiers = {};
  double tokens = 7.4e9;          // of pretraining, of the family and of every separate model
  double refine_tokens = 0.27e9;  // of shared refinement
  TrainingBench bench = {};       // its elastic recipe is that of the family
};

struct CostStage {
  std::string stage;
  Index parameters = 0;
  double tokens = 0, rate = 0, hours = 0;
};

struct CostReport {
  std::vector<CostStage> shared = {}, separate = {};
  double shared_hours = 0, separate_hours = 0;
  double saving = 0;  // 1 - shared / separate
};

CostReport measure_cost(const ModelConfig& config, Stream& stream, Precision precision, const CostOptions& options);

// {"model", "protocol", "device", "shared": [{"stage", "parameters", "tokens", "tokens_per_second", "hours"}],
// "separate": [...], "shared_hours", "separate_hours", "saving"}
Json to_json(const CostReport& report, const std::string& model, const std::string& device);

}  // namespace essh
