#include <fmt/format.h>

#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/units.h"
#include "essh/config/fields.h"
#include "essh/train/named_settings.h"
#include "essh/train/run.h"

namespace essh::verbs {
namespace {

struct TrainOptions {
  std::string recipe, named, out, data;
  std::vector<std::string> settings;
  RunOptions run;
  DeviceOptions device;
  bool dry_run = false, print_recipe = false, json = false;
};

void print_estimate(const RunEstimate& e, const TrainOptions& o, const std::vector<RecipeDifference>& changes) {
  if (o.json) {
    Json changed = Json::object();
    for (const auto& [field, before, after] : changes) changed[field] = parse_json(after, field);
    const Json object = {{"recipe", o.recipe},
                         {"named_settings", o.named.empty() ? Json(nullptr) : Json(o.named)},
                         {"changed", changed},
                         {"parameters", e.parameters},
                         {"weights_bytes", e.weights_bytes},
                         {"gradient_bytes", e.gradient_bytes},
                         {"moment_bytes", e.moment_bytes},
                         {"activation_bytes", e.activation_bytes},
                         {"checkpoint_bytes", e.checkpoint_bytes},
                         {"data_bytes", e.data_bytes},
                         {"other_bytes", e.other_bytes},
                         {"total_bytes", e.total_bytes},
                         {"flops_per_token", e.flops_per_token},
                         {"tokens", e.tokens},
                         {"seconds", e.seconds},
                         {"peak_flops", e.peak_flops},
                         {"reduced_share", e.reduced ? Json(e.reduced->all) : Json(nullptr)},
                         {"reduced_share_after_warmup", e.reduced ? Json(e.reduced->after_warmup) : Json(nullptr)}};
    fmt::print("{}\n", to_text(object, 2));
    return;
  }
  fmt::print("recipe       {}{}\n", o.recipe, o.named.empty() ? "" : ", with the settings of " + o.named);
  for (const auto& [field, before, after] : changes)
    fmt::print("             {}: {} instead of {}\n", field, after, before);
  fmt::print("parameters   {}\n", e.parameters);
  fmt::print("memory       weights {}, gradients {}, moments {}, activations {}", format_bytes(e.weights_bytes),
             format_bytes(e.gradient_bytes), format_bytes(e.moment_bytes), format_bytes(e.activation_bytes));
  if (e.checkpoint_bytes > 0)
    fmt::print(", copy for checkpoints {}, mapped data {}, program {}", format_bytes(e.checkpoint_bytes),
               format_bytes(e.data_bytes), format_bytes(e.other_bytes));
  fmt::print(": {} in all\n", format_bytes(e.total_bytes));
  if (e.reduced)
    fmt::print("capacities   {:.2f}% of the micro-batches below full capacity, {:.2f}% after the warm-up\n",
               100 * e.reduced->all, 100 * e.reduced->after_warmup);
  else
    fmt::print("capacities   shares follow validation losses\n");
  fmt::print("work         {} FLOPs per token, {} tokens\n", format_count(e.flops_per_token), format_count(e.tokens));
  fmt::print("time         about {} on this machine ({:.0f}% of its {}FLOP/s in matrix products)\n",
             format_duration(e.seconds), 100 * e.flops_per_token * e.tokens / e.seconds / e.peak_flops,
             format_count(e.peak_flops));
}

void run(const TrainOptions& o) {
  auto settings = o.settings;
  if (!o.data.empty()) settings.push_back("data.path=" + to_text(Json(o.data)));
  const auto recipe = load_recipe(o.recipe, settings, o.named);
  if (o.print_recipe) return fmt::print("{}", recipe_yaml(recipe));
  if (recipe.data.path.empty() && recipe.data.task.empty())
    fail(ErrorKind::Usage,
         "train: say what to train on: --data FOLDER (`essh prepare` makes one), or data.task in the recipe");
  if (o.dry_run) {
    OpenDevice device(o.device);
    std::vector<RecipeDifference> changes;
    if (!o.named.empty()) changes = recipe_differences(load_recipe(o.recipe, {}), recipe);
    return print_estimate(estimate_run(recipe, device.stream), o, changes);
  }
  if (o.out.empty()) fail(ErrorKind::Usage, "train: say where to: -o RUN");
  OpenDevice device(o.device);
  const auto made = run_training(recipe, o.out, device.stream, o.run);
  if (!made.empty()) fmt::print("{}: {} steps\n", made.string(), recipe.run.steps);
}

}  // namespace

void add_train(Verb& app) {
  auto* verb = app.add_subcommand("train", "capacity-mixed pretraining; resumes by itself");
  auto o = std::make_shared<TrainOptions>();
  verb->add_option("RECIPE", o->recipe, fmt::format("a YAML file, or one of {}", fmt::join(recipe_names(), ", ")))
      ->required();
  verb->add_option("--recipe", o->named,
                   fmt::format("{}: replaces the recipe's settings of optimizer, capacities and refinement by the "
                               "paper's or by our own, before --set",
                               fmt::join(settings_names(), ", ")));
  verb->add_option("-o,--out", o->out, "the run folder");
  verb->add_option("--data", o->data, "a folder made by `essh prepare` (data.path of the recipe)");
  verb->add_option("--set", o->settings, "a setting of the recipe, e.g. run.steps=200; may be repeated")
      ->allow_extra_args(false);
  add_number(*verb, "--stop-after", o->run.stop_after, "save and stop after this many steps, as a signal would", 0,
             Index{1} << 40);
  verb->add_flag("--extend", o->run.extend, "go on with more steps or other checkpoints");
  verb->add_flag("--restart", o->run.restart,
                 "start over at step 0; what was produced so far is kept as NAME.1, NAME.2, ...");
  o->device.add_places(*verb);
  verb->add_flag("--print-recipe", o->print_recipe, "print every field of the recipe as YAML, then stop");
  verb->add_flag("--dry-run", o->dry_run,
                 "print recipe, parameters, memory, share of reduced capacities, FLOPs and expected time, then stop");
  verb->add_flag("--json", o->json, "print JSON (with --dry-run)");
  verb->footer(
      "Example: essh train tiny --data data/headers -o runs/tiny --set run.steps=400\n         essh train tiny --data "
      "data/headers -o runs/tiny --set run.steps=800 --extend\n\nFields of a recipe:\n" +
      field_help<Recipe>());
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
