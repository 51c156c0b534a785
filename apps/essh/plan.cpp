#include "essh/evaluate/plan.h"

#include <cmath>
#include <memory>

#include "apps/essh/measurement_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/progress.h"
#include "essh/base/units.h"
#include "essh/config/fields.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct PlanOptions {
  std::string model, memory, file, latency;
  Budget budget;
  MeasurementOptions measurement;
  bool json = false;
};

Budget budget_of(const PlanOptions& o) {
  Budget budget = o.budget;
  if (!o.memory.empty()) budget.memory = parse_bytes(o.memory, "plan: --max-memory");
  if (!o.file.empty()) budget.file = parse_bytes(o.file, "plan: --max-file");
  if (!o.latency.empty()) budget.decode_ms = parse_milliseconds(o.latency, "plan: --max-latency");
  if (!budget.limits()) fail(ErrorKind::Usage, "plan: give a limit, such as --max-memory 300MB or --max-latency 20ms");
  return budget;
}

// Measures the perplexity of the chosen capacity and of the largest one, which every plan has measured.
void add_perplexity(const PlanOptions& o, const StoredModel& stored, const fs::path& folder, Stream& stream,
                    Frontier& frontier, std::size_t chosen) {
  std::vector<std::size_t> places = {chosen};
  if (chosen + 1 < frontier.points.size()) places.push_back(frontier.points.size() - 1);
  std::vector<FrontierPoint> points;
  std::vector<Tier> tiers;
  for (const auto i : places) {
    points.push_back(frontier.points[i]);
    tiers.push_back({points.back().tier, 0, {points.back().channels, points.back().ffn}});
  }
  frontier.provenance.data_fingerprint = o.measurement.add_perplexity(stored, folder, tiers, stream, frontier, points);
  for (std::size_t i = 0; i < places.size(); ++i) frontier.points[places[i]] = points[i];
  compare_with_full(frontier);
}

void print(const PlanOptions& o, const Frontier& frontier, std::size_t chosen, const Budget& budget) {
  fmt::print("{}, {} threads, decoding at depth {}\n\n", frontier.processor, frontier.threads, frontier.depth);
  fmt::print("{:<12} {:>12} {:>9} {:>9} {:>9} {:>13}  {}\n", "capacity", "parameters", "memory", "file", "ms/token",
             "prefill tok/s", "");
  for (std::size_t i = 0; i < frontier.points.size(); ++i) {
    const auto& p = frontier.points[i];
    const auto over = excess(p, budget);
    fmt::print("{:<12} {:>12} {:>9} {:>9} {:>9.3f} {:>13.0f}  {}\n", p.tier, p.parameters,
               format_bytes(static_cast<double>(memory_of(p, budget.sequences))),
               format_bytes(static_cast<double>(p.file_bytes)), p.latency.decode_ms, p.latency.prefill_rate,
               chosen == i ? "<- the largest within the limits" : over);
  }
  const auto& p = frontier.points[chosen];
  if (p.perplexity > 0) {
    fmt::print("\nperplexity {:.3f} of {} tokens of {}", p.perplexity, frontier.tokens, frontier.data);
    if (p.nll_difference) fmt::print(", {:+.4f} nats a token from the full capacity", *p.nll_difference);
    fmt::print("\n");
  }
  if (frontier.points.size() == 1 && p.tier == "full") {
    fmt::print("\nThe model has one capacity, and it keeps within the limits.\n");
    return;
  }
  const auto words = p.tier.find('x') == std::string::npos ? "--tier " + p.tier
                                                           : fmt::format("--channels {} --ffn {}", p.channels, p.ffn);
  fmt::print("\nTake it:  essh export {} {} -o {}-{}\n", o.model, words, fs::path(o.model).filename().string(), p.tier);
  fmt::print("Serve it: essh serve {} --tier {}\n", o.model, p.tier);
}

void run(const PlanOptions& o) {
  const auto budget = budget_of(o);
  const auto folder = model_of_run(o.model);
  const auto stored = StoredModel::open(folder);
  const auto family = family_of(stored, folder);
  const auto capacities = planned_capacities(stored.config());
  OpenDevice device(o.measurement.device);
  const auto measure = [&](const std::vector<Tier>& tiers, const LatencyOptions& options,
                           const LatencyProgress& progress) {
    return measure_costs(stored, o.model, family, tiers, device.stream, o.measurement.device.engine(), options,
                         progress);
  };
  auto quickly = o.measurement.latency;
  quickly.steps = std::max(1, quickly.steps / quickly.rounds);
  quickly.rounds = 1;
  // The first measurement of a process also counts memory that the process keeps, so its result is dropped.
  measure({capacities.front()}, quickly, [](int, const Tier&) {});
  // A binary search, then three capacities with all rounds; sometimes more.
  const double expected =
      std::ceil(std::log2(static_cast<double>(capacities.size()))) + 1 + 3 * o.measurement.latency.rounds;
  double begun = 0;
  Progress progress("measure", expected, "rounds");
  auto plan = make_plan(capacities, budget, [&](const std::vector<Tier>& tiers, bool quick) {
    return measure(tiers, quick ? quickly : o.measurement.latency,
                   [&](int, const Tier& tier) { progress.update(std::min(begun++, expected), tier.name); });
  });
  progress.update(expected);
  progress.finish();
  if (!plan.chosen) {
    const auto& least = plan.points.front();
    fail(ErrorKind::Unsupported, "{}: no capacity keeps within the limits; the smallest, {}, exceeds them: {}", o.model,
         least.tier, excess(least, budget));
  }
  auto frontier = o.measurement.begin(device.stream);
  frontier.provenance = provenance_of(stored, folder, {}, kLatencySeed);
  frontier.points = std::move(plan.points);
  if (!o.measurement.data.empty()) add_perplexity(o, stored, folder, device.stream, frontier, *plan.chosen);
  if (!o.json) return print(o, frontier, *plan.chosen, budget);
  auto json = to_json(frontier);
  auto limits = budget;
  const auto& chosen = frontier.points[*plan.chosen];
  json["limits"] = write_fields(limits);
  json["chosen"] = {{"tier", chosen.tier},
                    {"channels", chosen.channels},
                    {"ffn", chosen.ffn},
                    {"memory_bytes", memory_of(chosen, budget.sequences)},
                    {"decode_ms", chosen.latency.decode_ms}};
  fmt::print("{}\n", to_text(json, 2));
}

}  // namespace

void add_plan(Verb& app) {
  auto* verb = app.add_subcommand("plan", "the best capacity for a budget, measured on this machine");
  auto o = std::make_shared<PlanOptions>();
  verb->add_option("MODEL", o->model, "a run, or a family (model folder)")->required();
  verb->add_option("--max-memory", o->memory, "weights, states and caches, e.g. 300MB");
  verb->add_option("--max-latency", o->latency, "of a token at batch 1, e.g. 20ms");
  verb->add_option("--max-file", o->file, "weights of the export, e.g. 200MB");
  add_number(*verb, "--max-parameters", o->budget.parameters, "of the export", 1, std::uint64_t{1} << 50);
  add_number(*verb, "--min-prefill", o->budget.prefill_rate, "prompt tokens per second", 0, 1e12);
  add_number(*verb, "--sequences", o->budget.sequences, "whose states the memory holds at once", 1, Index{1} << 24)
      ->capture_default_str();
  o->measurement.add_to(*verb, "measure the perplexity of the chosen capacity");
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer(
      "Example: essh plan runs/tiny --max-memory 300MB --max-file 3MB --data heldout.txt\n         essh plan runs/370m "
      "--max-latency 300us --device cuda");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
