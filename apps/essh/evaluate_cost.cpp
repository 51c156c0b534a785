#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include "apps/essh/cost_line.h"
#include "apps/essh/device_options.h"
#include "apps/essh/evaluate_verbs.h"
#include "apps/essh/number_option.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"
#include "essh/config/fields.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/evaluate/training_cost.h"

namespace essh::verbs {
namespace {

struct EvaluateCostOptions {
  std::string model;
  std::string transformer;
  std::vector<std::string> tiers = {"T1", "T4", "T7", "T10"}, rates;
  CostOptions cost;
  DeviceOptions device;
  bool json = false;
};

void print_table(const CostReport& report, const std::string& model, const std::string& device) {
  fmt::print("{} on {}\n\n{:<22} {:>14} {:>11} {:>10} {:>9}\n", model, device, "stage", "parameters", "tokens (B)",
             "ktok/s", "hours");
  bool given = false;
  for (const auto* lines : {&report.shared, &report.separate, &report.transformers}) {
    for (const auto& line : *lines) {
      fmt::print("{:<22} {:>14} {:>11.2f} {:>10.2f} {:>9.2f}{}\n", line.stage, line.parameters, line.tokens / 1e9,
                 line.rate / 1e3, line.hours, line.given ? " *" : "");
      given |= line.given;
    }
  }
  const auto total = [](const std::string& name, double hours) { fmt::print("{:<60} {:>9.2f}\n", name, hours); };
  const auto saved = [](double share) { fmt::print("{:<60} {:>8.1f}%\n", "  saved by the family", 100 * share); };
  fmt::print("{}\n", given ? "* rate given, not measured\n" : "");
  total("one shared family", report.shared_hours);
  total(fmt::format("{} separate models", report.separate.size()), report.separate_hours);
  saved(report.saving);
  if (report.transformers.empty()) return;
  total(fmt::format("{} Transformers", report.transformers.size()), report.transformer_hours);
  saved(report.transformer_saving);
}

// "T1=90200": tokens per second of a stage.
std::map<std::string, double> rates_of(const std::vector<std::string>& words) {
  std::map<std::string, double> rates;
  for (const auto& word : words) {
    const auto equals = word.find('=');
    double rate = 0;
    const auto* end = word.data() + word.size();
    if (equals != std::string::npos) {
      const auto [stop, error] = std::from_chars(word.data() + equals + 1, end, rate);
      if (error != std::errc() || stop != end) rate = 0;
    }
    if (!(rate > 0) || !std::isfinite(rate))
      fail(ErrorKind::Usage, "evaluate cost: --rates takes STAGE=TOKENS_PER_SECOND, e.g. T1=90200, got {}",
           in_quotes(word));
    rates[word.substr(0, equals)] = rate;
  }
  return rates;
}

void run(const EvaluateCostOptions& o) {
  const CostLine line;
  OpenDevice device(o.device);
  const auto config = preset(o.model);
  if (tiers_of(config).size() < 2) fail(ErrorKind::Usage, "evaluate cost: {} is no family; use one, as 370m", o.model);
  auto options = o.cost;
  for (const auto& name : o.tiers) options.tiers.push_back(find_tier(config, name));
  options.rates = rates_of(o.rates);
  if (!o.transformer.empty()) {
    options.transformer = preset(o.transformer);
    if (options.transformer.full_attention.head_dim == 0 || tiers_of(options.transformer).size() > 1)
      fail(ErrorKind::Usage, "evaluate cost: {} is no single Transformer; use one, as transformer-370m", o.transformer);
  }
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
  auto* cost = verb.add_subcommand("cost", "training hours of one family against separate models and Transformers");
  auto o = std::make_shared<EvaluateCostOptions>();
  cost->add_option("PRESET", o->model, "a family: tiny, 370m, 1.5b ...")->required()->one_of(preset_names());
  cost->add_option("--tiers", o->tiers, "the sizes to obtain")->delimiter(',')->capture_default_str();
  cost->add_option("--transformer", o->transformer,
                   "also one Transformer of about the size of each tier, with the depth and proportions of this preset")
      ->one_of(preset_names());
  cost->add_option("--rates", o->rates,
                   "known rates in tokens per second, not measured: pretraining=41900,refinement=15600,T1=90200,"
                   "transformer-T1=141320")
      ->delimiter(',');
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
  cost->footer("Example: essh evaluate cost 370m --transformer transformer-370m --device cuda");
  cost->callback([o] { run(*o); });
}

}  // namespace essh::verbs
