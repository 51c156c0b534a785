#include "essh/evaluate/training_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/base/utf8.h"
#include "essh/model/cost.h"
#include "essh/model/slice.h"

namespace essh {
namespace {

// A Transformer of this relative difference in size is taken as it is: transformer-370m is 1.4 % below T10 of 370m.
constexpr double kNear = 0.02;

Index parameters_of(const ModelConfig& config) {
  return cost_of(config, full_capacity(config)).parameters;
}

// Stages with their keys and models, before any rate is known.
struct PlannedStage {
  CostStage stage;
  ModelConfig model;
  TrainingBench bench;
};

PlannedStage planned(std::string key, std::string name, ModelConfig model, double tokens, TrainingBench bench) {
  const auto parameters = parameters_of(model);
  return {{.key = std::move(key), .stage = std::move(name), .parameters = parameters, .tokens = tokens},
          std::move(model),
          std::move(bench)};
}

double total_hours(const std::vector<CostStage>& stages) {
  double sum = 0;
  for (const auto& stage : stages) sum += stage.hours;
  return sum;
}

}  // namespace

ModelConfig transformer_near(const ModelConfig& reference, Index parameters) {
  constexpr Index kFfnStep = 64;
  const auto step = reference.full_attention.head_dim;
  const auto with = [&](Index width, Index ffn) {
    auto model = reference;
    model.hidden_size = width;
    model.intermediate_size = ffn;
    model.full_attention.num_attention_heads = width / step;
    return model;
  };
  const auto ratio_of = [](const ModelConfig& model) {
    return static_cast<double>(model.intermediate_size) / static_cast<double>(model.hidden_size);
  };
  std::optional<ModelConfig> best;
  for (Index width = step;; width += step) {
    const auto least = parameters_of(with(width, kFfnStep));
    if (least > parameters) break;
    const auto slope = parameters_of(with(width, 2 * kFfnStep)) - least;
    const auto model = with(width, kFfnStep * (1 + (parameters - least + slope / 2) / slope));
    if (!best || std::abs(ratio_of(model) - ratio_of(reference)) < std::abs(ratio_of(*best) - ratio_of(reference)))
      best = model;
  }
  if (!best) {
    fail(ErrorKind::Usage,
         "cost: a Transformer of {} layers and {} tokens has more than {} parameters; use larger tiers",
         reference.num_hidden_layers, reference.vocab_size, parameters);
  }
  return *best;
}

CostReport measure_cost(const ModelConfig& config, Stream& stream, Precision precision, const CostOptions& options) {
  auto refinement = options.bench, dense = options.bench;
  refinement.refinement = true;
  dense.elastic = {.sampling = "dense"};
  std::vector<PlannedStage> shared = {
      planned("pretraining", "shared pretraining", config, options.tokens, options.bench),
      planned("refinement", "shared refinement", config, options.refine_tokens, refinement)};
  std::vector<PlannedStage> separate, transformers;
  for (const auto& tier : options.tiers) {
    auto alone = slice(config, tier.capacity);
    alone.elastic = {};
    separate.push_back(planned(tier.name, "separate " + tier.name, alone, options.tokens, dense));
    if (options.transformer.layer_types.empty()) continue;
    auto transformer = options.transformer;
    transformer.vocab_size = config.vocab_size;
    const auto wanted = separate.back().stage.parameters;
    if (std::abs(static_cast<double>(parameters_of(transformer)) / static_cast<double>(wanted) - 1) > kNear)
      transformer = transformer_near(transformer, wanted);
    transformers.push_back(
        planned("transformer-" + tier.name, "Transformer near " + tier.name, transformer, options.tokens, dense));
  }
  std::vector<std::string> known;
  for (const auto* stages : {&shared, &separate, &transformers}) {
    for (const auto& each : *stages) known.push_back(each.stage.key);
  }
  for (const auto& [key, rate] : options.rates) {
    if (std::ranges::find(known, key) == known.end())
      fail(ErrorKind::Usage, "cost: no stage is called {}; rates can be given for {}", in_quotes(key),
           fmt::join(known, ", "));
  }
  Progress progress("cost", static_cast<double>(known.size()), "rate");
  double done = 0;
  const auto measured = [&](std::vector<PlannedStage>& stages) {
    std::vector<CostStage> found;
    for (auto& each : stages) {
      auto& stage = found.emplace_back(std::move(each.stage));
      const auto given = options.rates.find(stage.key);
      stage.given = given != options.rates.end();
      stage.rate =
          stage.given ? given->second : measure_training(each.model, stream, precision, each.bench).rates.mean();
      stage.hours = stage.tokens / stage.rate / 3600;
      progress.update(++done, stage.stage);
    }
    return found;
  };
  CostReport report;
  report.shared = measured(shared);
  report.separate = measured(separate);
  report.transformers = measured(transformers);
  progress.finish();
  report.shared_hours = total_hours(report.shared);
  report.separate_hours = total_hours(report.separate);
  report.transformer_hours = total_hours(report.transformers);
  report.saving = 1 - report.shared_hours / report.separate_hours;
  if (!report.transformers.empty()) report.transformer_saving = 1 - report.shared_hours / report.transformer_hours;
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
                      {"measured", !item.given},
                      {"hours", item.hours}});
    return list;
  };
  Json json = {{"model", model},
               {"protocol", "training cost"},
               {"device", device},
               {"shared", lines(report.shared)},
               {"separate", lines(report.separate)},
               {"shared_hours", report.shared_hours},
               {"separate_hours", report.separate_hours},
               {"saving", report.saving}};
  if (!report.transformers.empty()) {
    json["transformers"] = lines(report.transformers);
    json["transformer_hours"] = report.transformer_hours;
    json["transformer_saving"] = report.transformer_saving;
  }
  return json;
}

}  // namespace essh
