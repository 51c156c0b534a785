#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/essh/bench_draft.h"
#include "apps/essh/bench_model.h"
#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/evaluate/decoding_rate.h"
#include "essh/evaluate/throughput.h"
#include "essh/store/provenance.h"

namespace essh::verbs {
namespace {

struct BenchDecodeOptions {
  std::string model, output = "md";
  std::vector<std::string> tiers = {"full"}, formats = {};
  DeviceOptions device;
  std::vector<Index> prompts = {}, depths = {2048}, batches = {1};
  DecodingBench bench;
  DraftBenchOptions draft;
  bool eager = false, unfused = false, mixed = false, profile = false, json = false;

  EngineOptions engine() const {
    auto options = device.engine();
    options.eager = eager;
    options.fused = !unfused;
    return options;
  }
  std::string path() const {
    const auto* const launches = unfused ? (eager ? "eager" : "unfused") : eager ? "fused, eager" : "fused";
    return fmt::format("{}{}", launches, device.cublas_products ? ", cuBLASLt products" : "");
  }
};

// Fields that every row of the table has.
Json common_fields(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model, const Tier& tier) {
  return {
      {"model", o.model},
      {"device", device.stream.description()},
      {"tier", tier.name},
      {"dtype", precision_on(device.stream.device(), o.device.chosen_precision()) == Precision::BFloat16 ? "bfloat16"
                                                                                                         : "float32"},
      {"stored_dtype", matrix_format_name(matrix_format(model.config()))},
      {"window_cache", o.device.window_cache},
      {"state_dtype", o.device.state_dtype},
      {"path", o.path()},
      {"provenance", bench_provenance(o.model, model, kThroughputSeed)}};
}

Json measure_prompt(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model, const Tier& tier,
                    Index length) {
  const PrefillBench bench{.tokens = length, .all_logits = false, .runs = o.bench.repetitions};
  const auto rates = measure_prefill(model, tier, device.stream, o.engine(), bench);
  Json line = common_fields(o, device, model, tier);
  line.update({{"n_prompt", length},
               {"n_gen", 0},
               {"n_depth", 0},
               {"n_batch", 1},
               {"avg_ts", rates.mean()},
               {"stddev_ts", rates.deviation()},
               {"samples_ts", rates.samples}});
  return line;
}

Json measure_steps(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model,
                   const std::vector<Tier>& tiers, double read_rate) {
  const auto rates = o.mixed ? measure_mixed_decoding(model, tiers, device.stream, o.engine(), o.bench)
                             : measure_decoding(model, tiers[0], device.stream, o.engine(), o.bench);
  const double ms = rates.median_ms(), tokens = 1e3 * static_cast<double>(o.bench.batch);
  std::vector<double> samples;
  for (const double step : rates.step_ms) samples.push_back(tokens / step);
  Json line = common_fields(o, device, model, tiers[0]);
  std::vector<std::string> names;
  for (const auto& tier : tiers) names.push_back(tier.name);
  line.update({{"tier", fmt::format("{}", fmt::join(names, "+"))},
               {"n_prompt", 0},
               {"n_gen", o.bench.steps},
               {"n_depth", o.bench.depth},
               {"n_batch", o.bench.batch},
               {"avg_ts", tokens / ms},
               {"stddev_ts", tokens / ms * rates.deviation_ms() / ms},
               {"samples_ts", samples},
               {"decode_ms", ms},
               {"samples_ms", rates.step_ms},
               {"weights", rates.weights.format},
               {"weight_bytes", rates.weights.bytes},
               {"state_bytes", rates.state_bytes},
               {"bytes_per_step", rates.moved_bytes}});
  if (read_rate > 0) {
    line["read_bytes_per_second"] = read_rate;
    line["share_of_read_rate"] = rates.moved_bytes / (1e-3 * ms) / read_rate;
  }
  return line;
}

std::string test_name(const Json& line) {
  if (line["n_gen"].get<Index>() == 0) return fmt::format("pp{}", line["n_prompt"].get<Index>());
  return fmt::format("tg{} @ d{}", line["n_gen"].get<Index>(), line["n_depth"].get<Index>());
}

void print_markdown(const Json& lines) {
  fmt::print("| model | tier | dtype | path | batch | test | t/s | ms a step | weights | state | read rate |\n");
  fmt::print("|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
  const auto text = [](const Json& line, const char* key) { return line[key].get<std::string>(); };
  for (const auto& line : lines) {
    fmt::print("| {} | {} | {} | {} | {} | {} | {:.2f} ± {:.2f} |", text(line, "model"), text(line, "tier"),
               text(line, "dtype"), text(line, "path"), line["n_batch"].get<Index>(), test_name(line),
               line["avg_ts"].get<double>(), line["stddev_ts"].get<double>());
    if (line.contains("decode_ms"))
      fmt::print(" {:.3f} | {} {} | {} |", line["decode_ms"].get<double>(), text(line, "weights"),
                 format_bytes(line["weight_bytes"].get<double>()), format_bytes(line["state_bytes"].get<double>()));
    else
      fmt::print(" | | |");
    if (line.contains("share_of_read_rate"))
      fmt::print(" {:.0f} % |\n", 100 * line["share_of_read_rate"].get<double>());
    else
      fmt::print(" |\n");
  }
}

// Plain decoding and decoding with drafts, a line for each draft.
void run_drafts(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model) {
  if (o.output == "csv") fail(ErrorKind::Usage, "bench decode: --draft prints md or json, not csv");
  Engine engine(model, device.stream, o.engine());
  Json lines = Json::array();
  for (const auto& name : o.tiers) {
    const auto tier = find_tier(model_of_run(o.model), model.config(), name);
    for (const Index depth : o.depths) {
      for (const auto& found : measure_drafts(
               o.draft, engine, tier,
               {.model = o.model, .depth = depth, .steps = o.bench.steps, .repetitions = o.bench.repetitions})) {
        Json line = common_fields(o, device, model, tier);
        line.update(found);
        lines.push_back(std::move(line));
      }
    }
  }
  if (o.output == "json")
    fmt::print("{}\n", to_text(lines, 2));
  else
    print_drafts(lines);
}

void print_csv(const Json& lines) {
  const std::vector<std::string> keys = {
      "model",   "device", "tier",      "dtype",     "path",        "n_prompt",       "n_gen",   "n_depth",
      "n_batch", "avg_ts", "stddev_ts", "decode_ms", "state_bytes", "bytes_per_step", "weights", "weight_bytes"};
  fmt::print("{}\n", fmt::join(keys, ","));
  for (const auto& line : lines) {
    std::vector<std::string> cells;
    for (const auto& key : keys) cells.push_back(line.contains(key) ? to_text(line[key]) : "");
    fmt::print("{}\n", fmt::join(cells, ","));
  }
}

// Adds a line for each measurement of one model.
void measure_model(BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model, double read_rate, Json& lines) {
  std::vector<std::vector<Tier>> groups;
  for (const auto& name : o.tiers) {
    const auto tier = find_tier(model_of_run(o.model), model.config(), name);
    for (const Index length : o.prompts) lines.push_back(measure_prompt(o, device, model, tier, length));
    if (o.mixed && !groups.empty())
      groups[0].push_back(tier);
    else
      groups.push_back({tier});
  }
  for (const auto& tiers : groups) {
    for (const Index depth : o.depths) {
      for (const Index batch : o.batches) {
        log::detail("bench decode: {} in {}, {}, context {}, batch {}", o.model,
                    matrix_format_name(matrix_format(model.config())), tiers[0].name, depth, batch);
        o.bench.depth = depth;
        o.bench.batch = batch;
        lines.push_back(measure_steps(o, device, model, tiers, read_rate));
      }
    }
  }
}

// Launches are timed one by one, which a recording does not allow.
void profile_steps(BenchDecodeOptions o, OpenDevice& device, const StoredModel& model) {
  auto options = o.engine();
  options.eager = true;
  o.bench.warmup = 2;
  o.bench.steps = 8;
  o.bench.repetitions = 1;
  ProfiledScope profile(device.stream);
  measure_decoding(model, find_tier(model_of_run(o.model), model.config(), o.tiers.back()), device.stream, options,
                   o.bench);
  print_profile(profile.lines());
}

void run(BenchDecodeOptions o) {
  if (o.json) o.output = "json";
  OpenDevice device(o.device);
  const auto stored = open_bench_model(o.model);
  // The model in each format of --dtype, or as it is stored.
  const auto model_in = [&](std::size_t i) {
    return o.formats.empty() ? stored : stored.stored_as(parse_matrix_format(o.formats[i]));
  };
  const auto count = std::max<std::size_t>(1, o.formats.size());
  if (!o.draft.drafts.empty()) {
    if (count > 1) fail(ErrorKind::Usage, "bench decode: --draft takes one --dtype");
    return run_drafts(o, device, model_in(0));
  }
  const double read_rate = measure_read_rate(device.stream);
  Json lines = Json::array();
  for (std::size_t i = 0; i < count; ++i) measure_model(o, device, model_in(i), read_rate, lines);
  if (o.output == "json")
    fmt::print("{}\n", to_text(lines, 2));
  else if (o.output == "csv")
    print_csv(lines);
  else
    print_markdown(lines);
  if (o.profile) profile_steps(o, device, model_in(count - 1));
}

}  // namespace

void add_bench_decode(Verb& verb) {
  auto o = std::make_shared<BenchDecodeOptions>();
  auto* kind = verb.add_subcommand("decode", "one token after the other, for one sequence or many");
  kind->add_option("MODEL", o->model, "a model folder, a run, or a preset with initial weights")->required();
  o->device.add_to(*kind);
  o->device.add_state_formats(*kind);
  o->device.add_deterministic(*kind);
  o->device.add_default_launches(*kind);
  kind->add_option("--tier", o->tiers, "T4, full, xi=0.3 or 18x1792; several by commas")
      ->delimiter(',')
      ->capture_default_str();
  kind->add_option("--dtype", o->formats,
                   "matrices in bf16, q8, fp8 or q4, as export writes them, instead of as stored; several by commas")
      ->delimiter(',')
      ->one_of({"bf16", "q8", "fp8", "q4"});
  add_number(*kind, "-p,--n-prompt", o->prompts, "also reads prompts of these lengths", 1, Index{1} << 30)
      ->delimiter(',');
  add_number(*kind, "-n,--steps", o->bench.steps, "timed steps", 1, 1 << 20)->capture_default_str();
  add_number(*kind, "-d,--depth", o->depths, "tokens read before", 1, Index{1} << 30)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-b,--batch-size", o->batches, "sequences at once", 1, 1 << 16)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-r,--repetitions", o->bench.repetitions, "of the timed steps; the median counts", 1, 1 << 16)
      ->capture_default_str();
  add_number(*kind, "--warmup", o->bench.warmup, "steps before the first timed one", 0, 1 << 20)->capture_default_str();
  kind->add_option("-o,--output", o->output, "md, json or csv")->one_of({"md", "json", "csv"})->capture_default_str();
  kind->add_flag("--json", o->json, "print JSON");
  kind->add_flag("--mixed", o->mixed, "the tiers of --tier in turn in one batch, instead of one after the other");
  o->draft.add_to(*kind);
  kind->add_flag("--unfused", o->unfused, "kernel by kernel, as a CUDA graph");
  kind->add_flag("--eager", o->eager, "without a CUDA graph");
  kind->add_flag("--cublas-products", o->device.cublas_products,
                 "on CUDA: every matrix product by cuBLASLt, also those of 9 to 128 sequences");
  kind->add_flag("--profile", o->profile, "GPU time by kernel, of a few further steps");
  kind->callback([o] { run(*o); });
  kind->footer(
      "Example: essh bench decode 1.5b --device cuda -b 1,16,128 -o md\n"
      "         essh bench decode 1.5b --device cuda --dtype bf16,q8,fp8,q4");
}

}  // namespace essh::verbs
