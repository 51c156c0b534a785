#include "essh/evaluate/training_cost.h"

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/model/cost.h"
#include "essh/model/slice.h"

namespace essh {

CostReport measure_cost(const ModelConfig& config, Stream& stream, Precision precision, const CostOptions& options) {
  CostReport report;
  Progress progress("cost", static_cast<double>(options.tiers.size() + 2), "rate");
  double done = 0;
  const auto measured = [&](const std::string& stage, const ModelConfig& model, const TrainingBench& bench,
                            double tokens) {
    const double rate = measure_training(model, stream, precision, bench).rates.mean();
    progress.update(++done, stage);
    return CostStage{.stage = stage,
                     .parameters = cost_of(model, full_capacity(model)).parameters,
                     .tokens = tokens,
                     .rate = rate,
                     .hours = tokens / rate / 3600};
  };
  report.shared.push_back(measured("shared pretraining", config, options.bench, options.tokens));
  auto refinement = options.bench;
  refinement.refinement = true;
  report.shared.push_back(measured("shared refinement", config, refinement, options.refine_tokens));
  auto dense = options.bench;
  dense.elastic = {.sampling = "dense"};
  for (const auto& tier : options.tiers) {
    auto alone = slice(config, tier.capacity);
    alone.elastic = {};
    report.separate.push_back(measured("separate " + tier.name, alone, dense, options.tokens));
  }
  progress.finish();
  for (const auto& line : report.shared) report.shared_hours += line.hours;
  for (const auto& line : report.separate) report.separate_hours += line.hours;
  report.saving = 1 - report.shared_hours / report.separate_hours;
  return report;
}

Json to_json(const CostReport& report, const std::string& model, const std::string& device) {
  const auto lines = [](const std::vector<CostStage>& items) {
    Json list = Json::array();
    for (const auto& item : items)
      list.push_back({{"stage", item.stage},
                      {"parameters", item.parameters},
                      {"tokens", item.tokens},
                      {"tokens_per_second", item.rate},
                      {"hours", item.hours}});
    return list;
  };
  return {{"model", model},
          {"protocol", "training cost"},
          {"device", device},
          {"shared", lines(report.shared)},
          {"separate", lines(report.separate)},
          {"shared_hours", report.shared_hours},
          {"separate_hours", report.separate_hours},
          {"saving", report.saving}};
}

}  // namespace essh
