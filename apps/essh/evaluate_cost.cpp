#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "essh/base/json.h"
#include "essh/config/fields.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/evaluate/training_cost.h"

namespace essh::verbs {
namespace {

struct Options {
  std::string model;
  std::vector<std::string> tiers = {"T1", "T4", "T7", "T10"};
  CostOptions cost;
  DeviceOptions device;
  bool json = false;
};

void print_table(const CostReport& report, const std::string& model, const std::string& device) {
  fmt::print("{} on {}\n\n{:<22} {:>14} {:>11} {:>10} {:>9}\n", model, device, "stage", "parameters", "tokens (B)",
             "ktok/s", "hours");
  for (const auto* lines : {&report.shared, &report.separate}) {
    for (const auto& line : *lines)
      fmt::print("{:<22} {:>14} {:>11.2f} {:>10.2f} {:>9.2f}\n", line.stage, line.parameters, line.tokens / 1e9,
                 line.rate / 1e3, line.hours);
  }
  fmt::print("\n{:<59} {:>10.2f}\n{:<59} {:>10.2f}\n{:<59} {:>9.1f}%\n", "one shared family", report.shared_hours,
             fmt::format("{} separate models", report.separate.size()), report.separate_hours, "saved",
             100 * report.saving);
}

void run(const Options& o) {
  const CostLine line;
  OpenDevice device(o.device);
  const auto config = preset(o.model);
  if (tiers_of(config).size() < 2) fail(ErrorKind::Usage, "evaluate cost: {} is no family; use one, as 370m", o.model);
  auto options = o.cost;
  for (const auto& name : o.tiers) options.tiers.push_back(find_tier(config, name));
  const auto names = recipe_names();
  options.bench.elastic =
      std::ranges::find(names, o.model) != names.end() ? load_recipe(o.model, {}).elastic : ElasticRecipe{};
  options.bench.elastic.warmup_tokens = 0;
  const auto report = measure_cost(config, device.stream, o.device.chosen_precision(), options);
  const auto place = device.stream.description();
  if (o.json) {
    auto json = to_json(report, o.model, place);
    json["provenance"] = write_fields(ResultProvenance{.seed = options.bench.seed, .build = this_build()});
    fmt::print("{}\n", to_text(json, 2));
  } else {
    print_table(report, o.model, place);
  }
}

}  // namespace

void add_evaluate_cost(Verb& verb) {
  auto* cost = verb.add_subcommand("cost", "training hours of one family against separate models");
  auto o = std::make_shared<Options>();
  cost->add_option("PRESET", o->model, "a family: tiny, 370m, 1.5b ...")->required()->one_of(preset_names());
  cost->add_option("--tiers", o->tiers, "the sizes to obtain")->delimiter(',')->capture_default_str();
  add_number(*cost, "--tokens", o->cost.tokens, "of pretraining, of the family and of each model", 1.0, 1e18)
      ->capture_default_str();
  add_number(*cost, "--refine-tokens", o->cost.refine_tokens, "of shared refinement", 0.0, 1e18)->capture_default_str();
  add_number(*cost, "--micro-batch", o->cost.bench.micro_batch, "sequences in one pass", 1, 1 << 20)
      ->capture_default_str();
  add_number(*cost, "--accumulation", o->cost.bench.accumulation, "passes in one step", 1, 1 << 20)
      ->capture_default_str();
  add_number(*cost, "--context", o->cost.bench.context, "tokens of a sequence", 1, 1 << 24)->capture_default_str();
  add_number(*cost, "--steps", o->cost.bench.steps, "timed steps of each rate", 1, 1 << 20)->capture_default_str();
  o->device.add_to(*cost);
  cost->add_flag("--json", o->json, "print JSON");
  cost->footer("Example: essh evaluate cost 370m --device cuda");
  cost->callback([o] { run(*o); });
}

}  // namespace essh::verbs
