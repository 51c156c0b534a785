#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/essh/bench_model.h"
#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/units.h"
#include "essh/config/fields.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/evaluate/throughput.h"
#include "essh/model/initialise.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct BenchOptions {
  std::string model, tier = "full";
  DeviceOptions device;
  std::vector<Index> lengths = {2048};
  TrainingBench training;
  PrefillBench prefill;
  bool mixed = false, residual_in_bf16 = false, profile = false, last_logit = false, json = false;
};

Json sample_fields(const Rates& rates) {
  return {{"avg_ts", rates.mean()}, {"stddev_ts", rates.deviation()}, {"samples_ts", rates.samples}};
}

Json peak_fields(Device device) {
  Json by_purpose = Json::object();
  for (const auto& use : peak_memory(device)) by_purpose[use.purpose] = use.bytes;
  return {{"peak_bytes", peak_bytes(device)}, {"peak_memory", by_purpose}};
}

// Prints the purposes that took at least 1% of the peak memory.
void print_peak(Device device) {
  const auto most = peak_bytes(device);
  std::vector<std::string> parts;
  std::size_t small = 0;
  for (const auto& use : peak_memory(device)) {
    if (use.bytes * 100 >= most)
      parts.push_back(fmt::format("{} {}", use.purpose, format_bytes(static_cast<double>(use.bytes))));
    else
      small += use.bytes;
  }
  if (small > 0) parts.push_back(fmt::format("other {}", format_bytes(static_cast<double>(small))));
  fmt::print("  memory when it was most: {}\n", fmt::join(parts, ", "));
}

void bench_training(const BenchOptions& o) {
  OpenDevice device(o.device);
  auto config = preset(o.model);
  config.residual_in_fp32 = !o.residual_in_bf16;
  auto bench = o.training;
  if (o.mixed) {
    const auto names = recipe_names();
    const bool has_recipe = std::ranges::find(names, o.model) != names.end();
    bench.elastic = has_recipe ? load_recipe(o.model, {}).elastic : ElasticRecipe{};
    bench.elastic.warmup_tokens = 0;
  }
  const auto result = measure_training(config, device.stream, o.device.chosen_precision(), bench);
  Index all = 0, reduced = 0;
  Json shares = Json::object();
  for (const auto& [budget, count] : result.micro_batches) {
    all += count;
    if (budget < 1) reduced += count;
    shares[fmt::format("{:.6g}", budget)] = count;
  }
  if (o.json) {
    Json object = sample_fields(result.rates);
    object.update({{"model", o.model},
                   {"device", device.stream.description()},
                   {"micro_batch", o.training.micro_batch},
                   {"accumulation", o.training.accumulation},
                   {"context", o.training.context},
                   {"mixed", o.mixed},
                   {"residual_in_fp32", !o.residual_in_bf16},
                   {"optimizer", o.training.optimizer.algorithm},
                   {"shares", shares},
                   {"teacher_passes", result.teacher_passes},
                   {"flops_per_token", result.flops_per_token},
                   {"state_bytes", result.state_bytes},
                   {"activation_bytes", result.activation_bytes},
                   {"provenance", write_fields(ResultProvenance{.seed = o.training.seed, .build = this_build()})}});
    object.update(peak_fields(device.stream.device()));
    fmt::print("{}\n", to_text(object, 2));
  } else {
    fmt::print(
        "{} on {}: training with {}, micro-batch {} x {}, context {}{}{}: {} +- {} tok/s ({}FLOP/s in products at full "
        "capacity), {} of weights, gradients and moments, {} of activations, {} at most, loss {:.3f}\n",
        o.model, device.stream.description(), o.training.optimizer.algorithm, o.training.micro_batch,
        o.training.accumulation, o.training.context,
        o.mixed ? fmt::format(", {} of {} micro-batches below full capacity, {} with a teacher", reduced, all,
                              result.teacher_passes)
                : "",
        o.residual_in_bf16 ? ", residual in bf16" : "", format_count(result.rates.mean()),
        format_count(result.rates.deviation()), format_count(result.flops_per_token * result.rates.mean()),
        format_bytes(static_cast<double>(result.state_bytes)),
        format_bytes(static_cast<double>(result.activation_bytes)),
        format_bytes(static_cast<double>(peak_bytes(device.stream.device()))), result.loss);
    print_peak(device.stream.device());
  }
  if (o.training.profile) print_profile(result.profile);
}

void bench_prefill(BenchOptions o) {
  OpenDevice device(o.device);
  const auto model = open_bench_model(o.model);
  const auto tier = find_tier(model_of_run(o.model), model.config(), o.tier);
  o.prefill.all_logits = !o.last_logit;
  Json list = Json::array();
  for (const Index length : o.lengths) {
    o.prefill.tokens = length;
    const auto [rates, state_bytes] = measure_prefill(model, tier, device.stream, o.device.engine(), o.prefill);
    if (o.json) {
      Json object = sample_fields(rates);
      object.update({{"model", o.model},
                     {"device", device.stream.description()},
                     {"tier", tier.name},
                     {"n_prompt", length},
                     {"n_gen", 0},
                     {"n_depth", 0},
                     {"state_bytes", state_bytes},
                     {"logits", o.last_logit ? "last" : "all"},
                     {"provenance", bench_provenance(o.model, model, kThroughputSeed)}});
      object.update(peak_fields(device.stream.device()));
      list.push_back(object);
    } else {
      fmt::print("{} {} on {}: prefill of {} tokens, {} logits: {} +- {} tok/s, {} of memory at most\n", o.model,
                 tier.name, device.stream.description(), length, o.last_logit ? "last" : "all",
                 format_count(rates.mean()), format_count(rates.deviation()),
                 format_bytes(static_cast<double>(peak_bytes(device.stream.device()))));
      std::fflush(stdout);
    }
  }
  if (o.json)
    fmt::print("{}\n", to_text(list, 2));
  else
    print_peak(device.stream.device());
  if (!o.profile) return;
  o.prefill.warmup = 0;
  o.prefill.runs = 1;
  ProfiledScope profile(device.stream);
  measure_prefill(model, tier, device.stream, o.device.engine(), o.prefill);
  print_profile(profile.lines());
}

template <class Run>
Verb* add_kind(Verb& verb, const char* name, const char* help, const std::shared_ptr<BenchOptions>& o, const Run& run) {
  auto* kind = verb.add_subcommand(name, help);
  o->device.add_to(*kind);
  o->device.add_default_launches(*kind);
  kind->add_flag("--json", o->json, "print JSON");
  kind->callback([o, run] { run(*o); });
  return kind;
}

}  // namespace

StoredModel open_bench_model(const std::string& name) {
  const auto names = preset_names();
  // As elsewhere, a folder of that name wins over a preset.
  if (std::ranges::find(names, name) == names.end() || fs::is_directory(name))
    return StoredModel::open(model_of_run(name));
  const auto config = preset(name);
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, kThroughputSeed);
  return StoredModel(std::move(model));
}

Json bench_provenance(const std::string& name, const StoredModel& model, std::uint64_t seed) {
  const bool stored = !model.hash().empty();
  return write_fields(provenance_of(model, stored ? model_of_run(name) : fs::path(), "", seed));
}

std::string csv_cell(const Json& value) {
  if (!value.is_string()) return to_text(value);
  std::string cell = "\"";
  for (const char letter : value.get<std::string>()) cell.append(letter == '"' ? 2 : 1, letter);
  return cell + '"';
}

void print_profile(const std::vector<ProfiledScope::Line>& lines) {
  double total = 0;
  for (const auto& line : lines) total += line.milliseconds;
  fmt::print("\n{:<52} {:>8} {:>10} {:>7}\n", "kernel", "calls", "ms", "share");
  for (const auto& line : lines)
    fmt::print("{:<52} {:>8} {:>10.3f} {:>6.1f}%\n", line.name, line.calls, line.milliseconds,
               100 * line.milliseconds / total);
  fmt::print("{:<52} {:>8} {:>10.3f}\n", "all", "", total);
}

void add_bench(Verb& app) {
  auto* verb = app.add_subcommand("bench", "speed of training, prompts, decoding and serving on this machine");
  verb->require_subcommand(1);
  verb->footer("Example: essh bench train 370m --device cuda --profile");
  const auto presets = fmt::format("one of {}", fmt::join(preset_names(), ", "));
  {
    auto o = std::make_shared<BenchOptions>();
    auto* kind = add_kind(*verb, "train", "whole training steps on random tokens", o, bench_training);
    kind->add_option("PRESET", o->model, presets)->required()->one_of(preset_names());
    add_number(*kind, "--micro-batch", o->training.micro_batch, "sequences in one pass", 1, 1 << 20)
        ->capture_default_str();
    add_number(*kind, "--accumulation", o->training.accumulation, "passes in one step", 1, 1 << 20)
        ->capture_default_str();
    add_number(*kind, "--context", o->training.context, "tokens of a sequence", 1, 1 << 24)->capture_default_str();
    add_number(*kind, "--loss-rows", o->training.loss_rows, "positions whose logits are held at once; 0 for all", 0,
               1 << 24)
        ->capture_default_str();
    add_number(*kind, "--steps", o->training.steps, "timed steps", 1, 1 << 20)->capture_default_str();
    kind->add_flag("--mixed", o->mixed,
                   "capacities as the sampler draws them after the warm-up, by the recipe of this name or the paper's");
    kind->add_flag("--residual-in-bf16", o->residual_in_bf16,
                   "the residual stream in bf16 where the arithmetic is, instead of float32");
    kind->add_option("--optimizer", o->training.optimizer.algorithm, "adamw or muon")->one_of({"adamw", "muon"});
    kind->add_flag("--profile", o->training.profile, "GPU time by kernel, of a few further micro-batches");
    kind->footer("Example: essh bench train 370m --device cuda --micro-batch 8 --accumulation 16");
  }
  {
    auto o = std::make_shared<BenchOptions>();
    auto* kind = add_kind(*verb, "prefill", "reading prompts, batch 1", o, bench_prefill);
    kind->add_option("MODEL", o->model, "a model folder, a run, or a preset with initial weights")->required();
    kind->add_option("--tier", o->tier, "T4, full, xi=0.3 or 18x1792")->capture_default_str();
    add_number(*kind, "--lengths", o->lengths, "tokens of the prompts", 1, Index{1} << 30)
        ->delimiter(',')
        ->capture_default_str();
    add_number(*kind, "--piece", o->prefill.piece, "tokens taken in at once", 1, 1 << 24)->capture_default_str();
    o->device.add_deterministic(*kind);
    kind->add_flag("--last-logit", o->last_logit, "logits of the last token only");
    kind->add_flag("--profile", o->profile, "GPU time by kernel, of a further prompt of the last length");
    kind->footer("Example: essh bench prefill 1.5b --device cuda --lengths 2048,8192,32768,131072");
  }
  add_bench_decode(*verb);
  add_bench_serve(*verb);
}

}  // namespace essh::verbs
