#include <fmt/format.h>

#include <algorithm>
#include <array>
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
  std::vector<int> steps = {200};
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

// Fields that every line has.
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

// Of a test of so many tokens.
Json sample_fields(const Rates& rates, Index tokens) {
  Rates times;  // in ns
  for (const double rate : rates.samples) times.samples.push_back(1e9 * static_cast<double>(tokens) / rate);
  return {{"avg_ts", rates.mean()}, {"stddev_ts", rates.deviation()}, {"samples_ts", rates.samples},
          {"avg_ns", times.mean()}, {"stddev_ns", times.deviation()}, {"samples_ns", times.samples}};
}

Json measure_prompt(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model, const Tier& tier,
                    const PrefillBench& bench) {
  const auto found = measure_prefill(model, tier, device.stream, o.engine(), bench);
  Json line = common_fields(o, device, model, tier);
  line.update({{"n_prompt", bench.tokens},
               {"n_gen", 0},
               {"n_depth", bench.depth},
               {"n_batch", 1},
               {"state_bytes", found.state_bytes}});
  line.update(sample_fields(found.rates, bench.tokens));
  return line;
}

Json measure_steps(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model,
                   const std::vector<Tier>& tiers, const DecodingBench& bench, double read_bandwidth) {
  const auto found = o.mixed ? measure_mixed_decoding(model, tiers, device.stream, o.engine(), bench)
                             : measure_decoding(model, tiers[0], device.stream, o.engine(), bench);
  Rates rates;
  for (const double step : found.step_ms) rates.samples.push_back(1e3 * static_cast<double>(bench.batch) / step);
  Json line = common_fields(o, device, model, tiers[0]);
  std::vector<std::string> names;
  for (const auto& tier : tiers) names.push_back(tier.name);
  line.update({{"tier", fmt::format("{}", fmt::join(names, "+"))},
               {"n_prompt", 0},
               {"n_gen", bench.steps},
               {"n_depth", bench.depth},
               {"n_batch", bench.batch},
               {"decode_ms", found.median_ms()},
               {"samples_ms", found.step_ms},
               {"weights", found.weights.format},
               {"weight_bytes", found.weights.bytes},
               {"state_bytes", found.state_bytes},
               {"bytes_per_step", found.moved_bytes},
               {"bytes_per_token", found.moved_bytes / static_cast<double>(bench.batch)}});
  line.update(sample_fields(rates, bench.steps * bench.batch));
  if (read_bandwidth > 0) {
    line["read_bandwidth"] = read_bandwidth;
    line["bandwidth_share"] = found.moved_bytes / (1e-3 * found.median_ms()) / read_bandwidth;
  }
  return line;
}

std::string test_name(const Json& line) {
  const auto number = [&](const char* key) { return line[key].get<Index>(); };
  const auto name =
      number("n_gen") == 0 ? fmt::format("pp{}", number("n_prompt")) : fmt::format("tg{}", number("n_gen"));
  return number("n_depth") == 0 ? name : fmt::format("{} @ d{}", name, number("n_depth"));
}

void print_markdown_row(const Json& line) {
  const auto text = [&](const char* key) { return line[key].get<std::string>(); };
  fmt::print("| {} | {} | {} | {} | {} | {} | {:.2f} ± {:.2f} |", text("model"), text("tier"), text("dtype"),
             text("path"), line["n_batch"].get<Index>(), test_name(line), line["avg_ts"].get<double>(),
             line["stddev_ts"].get<double>());
  if (line.contains("decode_ms"))
    fmt::print(" {:.3f} | {} {} | {} |", line["decode_ms"].get<double>(), text("weights"),
               format_bytes(line["weight_bytes"].get<double>()), format_bytes(line["state_bytes"].get<double>()));
  else
    fmt::print(" | | |");
  if (line.contains("bandwidth_share"))
    fmt::print(" {:.0f} % |\n", 100 * line["bandwidth_share"].get<double>());
  else
    fmt::print(" |\n");
}

constexpr std::array kColumns = {"model",     "device",       "tier",           "dtype",          "path",
                                 "n_prompt",  "n_gen",        "n_depth",        "n_batch",        "avg_ts",
                                 "stddev_ts", "decode_ms",    "state_bytes",    "bytes_per_step", "bytes_per_token",
                                 "weights",   "weight_bytes", "read_bandwidth", "bandwidth_share"};

void print_csv_row(const Json& line) {
  std::vector<std::string> cells;
  for (const char* key : kColumns) cells.push_back(line.contains(key) ? csv_cell(line[key]) : "");
  fmt::print("{}\n", fmt::join(cells, ","));
}

// Lines of results, printed as they come, except as one JSON array.
class Results {
 public:
  explicit Results(std::string format) : format_(std::move(format)) {}

  void add(Json line) {
    if (format_ == "json") {
      lines_.push_back(std::move(line));
      return;
    }
    if (format_ == "jsonl") {
      fmt::print("{}\n", to_text(line));
    } else if (format_ == "csv") {
      if (!begun_) fmt::print("{}\n", fmt::join(kColumns, ","));
      print_csv_row(line);
    } else {
      if (!begun_)
        fmt::print(
            "| model | tier | dtype | path | batch | test | t/s | ms a step | weights | state | of read bandwidth |\n"
            "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
      print_markdown_row(line);
    }
    begun_ = true;
    std::fflush(stdout);
  }

  void finish() const {
    if (format_ == "json") fmt::print("{}\n", to_text(lines_, 2));
  }

 private:
  std::string format_;
  bool begun_ = false;
  Json lines_ = Json::array();
};

// Plain decoding and decoding with drafts, a line for each draft.
void run_drafts(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model) {
  Engine engine(model, device.stream, o.engine());
  Json lines = Json::array();
  for (const auto& name : o.tiers) {
    const auto tier = find_tier(model_of_run(o.model), model.config(), name);
    for (const Index depth : o.depths) {
      for (const int steps : o.steps) {
        const DraftedText text{.model = o.model, .depth = depth, .steps = steps, .repetitions = o.bench.repetitions};
        for (const auto& found : measure_drafts(o.draft, engine, tier, text)) {
          Json line = common_fields(o, device, model, tier);
          line.update(found);
          lines.push_back(std::move(line));
        }
      }
    }
  }
  if (o.output == "json")
    fmt::print("{}\n", to_text(lines, 2));
  else
    print_drafts(lines);
}

// Adds a line for each measurement of one model.
void measure_model(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model, double read_bandwidth,
                   Results& results) {
  std::vector<std::vector<Tier>> groups;
  for (const auto& name : o.tiers) {
    const auto tier = find_tier(model_of_run(o.model), model.config(), name);
    for (const Index depth : o.depths) {
      for (const Index length : o.prompts) {
        const PrefillBench bench{.tokens = length, .depth = depth, .all_logits = false, .runs = o.bench.repetitions};
        results.add(measure_prompt(o, device, model, tier, bench));
      }
    }
    if (o.mixed && !groups.empty())
      groups[0].push_back(tier);
    else
      groups.push_back({tier});
  }
  auto bench = o.bench;
  for (const auto& tiers : groups) {
    for (const Index depth : o.depths) {
      for (const int steps : o.steps) {
        for (const Index batch : o.batches) {
          log::detail("bench decode: {} in {}, {}, context {}, batch {}", o.model,
                      matrix_format_name(matrix_format(model.config())), tiers[0].name, depth, batch);
          bench.depth = depth;
          bench.steps = steps;
          bench.batch = batch;
          results.add(measure_steps(o, device, model, tiers, bench, read_bandwidth));
        }
      }
    }
  }
}

// Launches are timed one by one, which a recording does not allow.
void profile_steps(const BenchDecodeOptions& o, OpenDevice& device, const StoredModel& model) {
  auto options = o.engine();
  options.eager = true;
  const DecodingBench bench{
      .batch = o.batches.back(), .depth = o.depths.back(), .warmup = 2, .steps = 8, .repetitions = 1};
  ProfiledScope profile(device.stream);
  measure_decoding(model, find_tier(model_of_run(o.model), model.config(), o.tiers.back()), device.stream, options,
                   bench);
  print_profile(profile.lines());
}

// As for llama-bench, a length of 0 leaves its test out.
void leave_out_empty(BenchDecodeOptions& o) {
  std::erase(o.prompts, 0);
  std::erase(o.steps, 0);
  if (!o.steps.empty()) return;
  const bool needs_steps = o.profile || !o.draft.drafts.empty();
  if (needs_steps || o.prompts.empty())
    fail(ErrorKind::Usage, "bench decode: no steps are left to time; give -n a number above 0{}",
         needs_steps ? "" : ", or -p");
}

void check_drafts(const BenchDecodeOptions& o) {
  if (o.formats.size() > 1) fail(ErrorKind::Usage, "bench decode: --draft takes one --dtype");
  if (o.output != "json" && o.output != "md")
    fail(ErrorKind::Usage, "bench decode: --draft prints md or json, not {}", o.output);
  if (std::ranges::find(o.depths, 0) != o.depths.end())
    fail(ErrorKind::Usage, "bench decode: --draft goes on from a text; give -d a number above 0");
}

void run(BenchDecodeOptions o) {
  if (o.json) o.output = "json";
  leave_out_empty(o);
  const bool drafts = !o.draft.drafts.empty();
  if (drafts) check_drafts(o);
  OpenDevice device(o.device);
  const auto stored = open_bench_model(o.model);
  // The model in each format of --dtype, or as it is stored.
  const auto model_in = [&](std::size_t i) {
    return o.formats.empty() ? stored : stored.stored_as(parse_matrix_format(o.formats[i]));
  };
  if (drafts) return run_drafts(o, device, model_in(0));
  const auto count = std::max<std::size_t>(1, o.formats.size());
  const double read_bandwidth = o.steps.empty() ? 0 : measure_read_bandwidth(device.stream);
  Results results(o.output);
  for (std::size_t i = 0; i < count; ++i) measure_model(o, device, model_in(i), read_bandwidth, results);
  results.finish();
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
  add_number(*kind, "-p,--n-prompt", o->prompts, "also times prompts of these lengths; 0 for none", 0, Index{1} << 30)
      ->delimiter(',');
  add_number(*kind, "-n,--steps,--n-gen", o->steps, "timed steps; 0 for none", 0, 1 << 20)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-d,--depth,--n-depth", o->depths, "tokens read before the timed ones", 0, Index{1} << 30)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-b,--batch-size", o->batches, "sequences at once", 1, 1 << 16)
      ->delimiter(',')
      ->capture_default_str();
  add_number(*kind, "-r,--repetitions", o->bench.repetitions,
             "of the timed steps: milliseconds are the median, t/s the mean", 1, 1 << 16)
      ->capture_default_str();
  add_number(*kind, "--warmup", o->bench.warmup, "steps before the first timed one", 0, 1 << 20)->capture_default_str();
  kind->add_option("-o,--output", o->output, "md, csv, jsonl or json; all but json print each line at once")
      ->one_of({"md", "csv", "jsonl", "json"})
      ->capture_default_str();
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
      "         essh bench decode 1.5b --device cuda --dtype bf16,q8,fp8,q4\n"
      "         essh bench decode runs/tiny --tier T1,T4,full -p 512 -n 128 -d 0 -o jsonl");
}

}  // namespace essh::verbs
