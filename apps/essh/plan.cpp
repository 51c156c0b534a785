#include "essh/evaluate/plan.h"

#include <cmath>
#include <limits>
#include <memory>

#include "apps/essh/device_options.h"
#include "apps/essh/number_option.h"
#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/machine.h"
#include "essh/base/progress.h"
#include "essh/base/units.h"
#include "essh/config/fields.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct PlanOptions {
  std::string model, memory, file, latency, tokenizer;
  std::vector<fs::path> data;
  std::int64_t context = kDefaultContext, windows = 0;
  Budget budget;
  LatencyOptions measured;
  DeviceOptions device;
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

// Perplexity of the chosen capacity, and of the whole family to compare it with.
void add_perplexity(const PlanOptions& o, const StoredModel& stored, const fs::path& folder, Stream& stream,
                    Frontier& frontier, FrontierPoint& point) {
  const auto most = o.windows > 0 ? o.windows * o.context + 1 : std::numeric_limits<std::int64_t>::max();
  const auto text =
      EvaluationText::open(o.data, folder, o.tokenizer, static_cast<TokenId>(stored.config().eos_token_id), most);
  std::vector<Tier> tiers = {{point.tier, 0, {point.channels, point.ffn}}};
  const Tier full{"full", 1, full_capacity(stored.config())};
  if (full.capacity != tiers[0].capacity) tiers.push_back(full);
  Engine engine(stored, stream, o.device.engine());
  const auto report = measure_perplexity(engine, text,
                                         {.tiers = tiers,
                                          .context = o.context,
                                          .windows = o.windows,
                                          .full_parameters = family_of(stored, folder).full_parameters});
  auto first = report;
  first.tiers.resize(1);
  add_quality({&point, 1}, first);
  point.nll_difference = report.tiers.front().nll - report.tiers.back().nll;
  frontier.data = text.name();
  frontier.context = report.context;
  frontier.tokens = report.tokens;
  frontier.provenance.data_fingerprint = text.fingerprint();
}

void print(const PlanOptions& o, const Frontier& frontier, const Plan& plan, const Budget& budget) {
  fmt::print("{}, {} threads, decoding at depth {}\n\n", frontier.processor, frontier.threads, frontier.depth);
  fmt::print("{:<12} {:>12} {:>9} {:>9} {:>9} {:>13}  {}\n", "capacity", "parameters", "memory", "file", "ms/token",
             "prefill tok/s", "");
  for (std::size_t i = 0; i < plan.points.size(); ++i) {
    const auto& p = plan.points[i];
    const auto over = excess(p, budget);
    fmt::print("{:<12} {:>12} {:>9} {:>9} {:>9.3f} {:>13.0f}  {}\n", p.tier, p.parameters,
               format_bytes(static_cast<double>(memory_of(p, budget.sequences))),
               format_bytes(static_cast<double>(p.file_bytes)), p.latency.decode_ms, p.latency.prefill_rate,
               plan.chosen == i ? "<- the largest within the limits" : over);
  }
  const auto& p = plan.points[*plan.chosen];
  if (p.perplexity > 0)
    fmt::print("\nperplexity {:.3f} of {} tokens of {}, {:+.4f} nats a token from the full capacity\n", p.perplexity,
               frontier.tokens, frontier.data, *p.nll_difference);
  if (plan.points.size() == 1 && p.tier == "full") {
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
  OpenDevice device(o.device);
  auto* cpu = device.stream.cpu();
  Frontier frontier{.depth = o.measured.depth,
                    .threads = cpu ? cpu->pool().threads() : 1,
                    .processor = cpu ? this_processor().model : device.stream.description()};
  // A binary search, then three capacities with all rounds; sometimes more.
  const double expected = std::ceil(std::log2(static_cast<double>(capacities.size()))) + 1 + 3 * o.measured.rounds;
  double begun = 0;
  Progress progress("measure", expected, "rounds");
  auto plan = make_plan(capacities, budget, [&](const std::vector<Tier>& tiers, bool quick) {
    auto options = o.measured;
    if (quick) {
      options.steps = std::max(1, options.steps / options.rounds);
      options.rounds = 1;
    }
    return measure_costs(stored, o.model, family, tiers, device.stream, o.device.engine(), options,
                         [&](int, const Tier& tier) { progress.update(std::min(begun++, expected), tier.name); });
  });
  progress.finish();
  if (!plan.chosen) {
    const auto& least = plan.points.front();
    fail(ErrorKind::Unsupported, "{}: no capacity keeps within the limits; the smallest, {}, exceeds them: {}", o.model,
         least.tier, excess(least, budget));
  }
  frontier.provenance = provenance_of(stored, folder, {}, kLatencySeed);
  auto& chosen = plan.points[*plan.chosen];
  if (!o.data.empty()) add_perplexity(o, stored, folder, device.stream, frontier, chosen);
  if (!o.json) return print(o, frontier, plan, budget);
  frontier.points = plan.points;
  auto json = to_json(frontier);
  auto limits = budget;
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
  verb->add_option("--data", o->data, "measure the chosen capacity's perplexity: a prepared dataset, or files of text");
  add_number(*verb, "--context", o->context, "tokens a window predicts, from nothing", 1, std::int64_t{1} << 24)
      ->capture_default_str();
  add_number(*verb, "--windows", o->windows, "only the first so many (default: all)", 1, std::int64_t{1} << 32);
  verb->add_option("--tokenizer", o->tokenizer, "a tokenizer for text files, when the model folder has none");
  add_number(*verb, "--depth", o->measured.depth, "tokens read before decoding is timed; also the timed prompt", 1,
             Index{1} << 24)
      ->capture_default_str();
  add_number(*verb, "--steps", o->measured.steps, "timed decoding steps of a capacity", 1, 1 << 20)
      ->capture_default_str();
  add_number(*verb, "--rounds", o->measured.rounds, "that share the steps; the best counts", 1, 1 << 20)
      ->capture_default_str();
  o->device.add_to(*verb);
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer(
      "Example: essh plan runs/tiny --max-memory 300MB --max-file 3MB --data heldout.txt\n         essh plan runs/370m "
      "--max-latency 300us --device cuda");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
