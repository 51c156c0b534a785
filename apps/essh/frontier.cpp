#include "essh/evaluate/frontier.h"

#include <memory>

#include "apps/essh/measurement_options.h"
#include "apps/essh/output_file.h"
#include "apps/essh/verbs.h"
#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/evaluate/report.h"
#include "essh/evaluate/tier_choice.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct FrontierOptions {
  std::vector<std::string> models, tiers = {"all"};
  std::vector<fs::path> quality;
  std::string csv, svg;
  MeasurementOptions measurement;
  bool json = false;
};

void add_model(const FrontierOptions& o, const std::string& model, Stream& stream, Frontier& frontier) {
  const auto folder = model_of_run(model);
  const auto stored = StoredModel::open(folder);
  const auto tiers = choose_tiers(folder, stored.config(), o.tiers);
  const auto family = family_of(stored, folder);
  auto points =
      measure_costs(stored, model, family, tiers, stream, o.measurement.device.engine(), o.measurement.latency);
  std::string fingerprint;
  if (!o.measurement.data.empty())
    fingerprint = o.measurement.add_perplexity(stored, folder, tiers, stream, frontier, points);
  frontier.provenance = provenance_of(stored, folder, std::move(fingerprint), kLatencySeed);
  if (o.models.size() > 1) frontier.provenance.model_hash.clear(), frontier.provenance.stage.clear();
  frontier.points.insert(frontier.points.end(), points.begin(), points.end());
}

void print_table(const Frontier& frontier) {
  fmt::print("{}, {} threads, decoding at depth {}", frontier.processor, frontier.threads, frontier.depth);
  if (!frontier.data.empty())
    fmt::print("; perplexity of {} tokens of {}, context {}", frontier.tokens, frontier.data, frontier.context);
  fmt::print("\n\n{}", to_table(frontier));
}

void run(const FrontierOptions& o) {
  for (const auto& path : {o.csv, o.svg}) check_output_file(path);
  OpenDevice device(o.measurement.device);
  auto frontier = o.measurement.begin(device.stream);
  for (const auto& model : o.models) add_model(o, model, device.stream, frontier);
  for (const auto& file : o.quality) {
    if (add_quality(frontier, quality_figures(read_json(file), file.string())) == 0)
      fail(ErrorKind::Usage, "{}: none of its results is of these models and tiers; measure them again", file.string());
  }
  compare_with_full(frontier);
  mark_dominated(frontier);

  // Printed before any file is written: a full disk loses no measurement.
  const auto text = to_text(to_json(frontier), 2) + "\n";
  if (o.json)
    fmt::print("{}", text);
  else
    print_table(frontier);
  if (!o.csv.empty()) write_durably(o.csv, to_csv(frontier));
  if (!o.svg.empty()) write_durably(o.svg, plot::to_svg(draw(frontier)));
  // A run stores its frontier, for `essh report`.
  const fs::path only = o.models.front();
  if (o.models.size() == 1 && model_of_run(only) != only) write_durably(only / kRunFrontier, text);
}

}  // namespace

void add_frontier(Verb& app) {
  auto* verb = app.add_subcommand("frontier", "quality, size, latency and memory of every tier on this machine");
  auto o = std::make_shared<FrontierOptions>();
  verb->add_option("MODEL", o->models, "a run, a family, or several model folders")->required();
  verb->add_option("--quality", o->quality,
                   "results of `essh evaluate ... --json`: a column for each of their figures");
  verb->add_option("--tiers", o->tiers, "all, or some: T1,T4,xi=0.3,18x1792")->delimiter(',')->capture_default_str();
  o->measurement.add_to(*verb, "measure quality too");
  verb->add_option("--csv", o->csv, "also write the table to this file")->type_name("FILE");
  verb->add_option("--svg", o->svg, "also draw it to this file")->type_name("FILE");
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer(
      "Example: essh frontier runs/tiny --data heldout.txt --svg frontier.svg\n         essh frontier exports/T1 "
      "exports/T4 --csv frontier.csv");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
