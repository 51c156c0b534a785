#include "essh/export/export.h"

#include <filesystem>
#include <memory>

#include "apps/essh/number_option.h"
#include "apps/essh/output_file.h"
#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/log.h"
#include "essh/base/units.h"
#include "essh/base/utf8.h"
#include "essh/model/cost.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct ExportVerbOptions {
  std::string model;
  std::string all;
  std::vector<std::string> tiers;
  double budget = 0;
  std::int64_t channels = 0, ffn = 0;
  std::string dtype;
  std::string out;
  std::string shard_bytes;
  bool force = false;
  bool json = false;
};

std::vector<Tier> wanted_tiers(const ExportVerbOptions& o, const fs::path& folder, const ModelConfig& config) {
  std::vector<Tier> tiers;
  if (o.all == "all")
    tiers = tiers_of(config);
  else if (!o.all.empty())
    fail(ErrorKind::Usage, "export: {} is not the word all; a tier is named with --tier", in_quotes(o.all));
  for (const auto& name : o.tiers) tiers.push_back(find_tier(folder, config, name));
  if (o.budget > 0) tiers.push_back(find_tier(folder, config, fmt::format("xi={}", o.budget)));
  if (config.has(MixerKind::Spectral) && (o.channels > 0) != (o.ffn > 0))
    fail(ErrorKind::Usage, "export: --channels and --ffn go together");
  if (o.ffn > 0) tiers.push_back(custom_tier(config, {o.channels, o.ffn}));
  if (tiers.empty())
    fail(ErrorKind::Usage, "export: say what to export: all, --tier T4, --xi 0.3, or --channels 18 --ffn 1792");
  return tiers;
}

std::string folder_name(const ModelConfig& config, const Tier& tier) {
  return tier.name.starts_with("xi=") ? sizes_of(config, tier.capacity) : tier.name;
}

// Folders that an export must not overwrite: the model, and for a run its checkpoints and its other model.
std::vector<fs::path> read_by_export(const fs::path& model, const fs::path& folder) {
  if (folder == model) return {folder};
  std::vector<fs::path> sources;
  for (const auto& stage : {kPretrainingFiles, kRefinementFiles}) {
    sources.push_back(model / stage.checkpoints);
    sources.push_back(model / stage.model);
  }
  return sources;
}

void run(const ExportVerbOptions& o) {
  const auto folder = model_of_run(o.model);
  const auto parent = load_model(folder);
  const auto hash = model_hash(folder);
  const auto tiers = wanted_tiers(o, folder, parent.config);
  const bool several = tiers.size() > 1 || o.all == "all";
  const auto own = matrix_format(parent.config);
  ExportOptions options{.format = o.dtype.empty() ? own : parse_matrix_format(o.dtype),
                        .existing = o.force ? ExistingFolder::Replace : ExistingFolder::Refuse};
  if (!o.shard_bytes.empty())
    options.shard_bytes = std::max<std::uint64_t>(1, parse_bytes(o.shard_bytes, "--shard-bytes"));
  // Checks all targets before the first is written.
  std::vector<fs::path> targets;
  for (const auto& tier : tiers)
    targets.push_back(several ? fs::path(o.out) / folder_name(parent.config, tier) : fs::path(o.out));
  for (const auto& target : targets) {
    for (const auto& source : read_by_export(o.model, folder)) refuse_overlap(source, target);
    check_new_folder(target, o.force);
  }
  if (several) make_folder(o.out);
  // The only place where matrices lose bits.
  const auto name = matrix_format_name(options.format);
  const bool rounded = options.format.quantisation || (options.format != own && options.format != MatrixFormat{});
  if (rounded)
    log::info("matrices are rounded from {} to {}: the exports equal the family rounded alike, not the family itself",
              matrix_format_name(own), name);
  Json list = Json::array();
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const auto& tier = tiers[i];
    const auto& target = targets[i];
    export_tier(parent, folder, hash, tier, target, options);
    const auto cost = cost_of(parent.config, tier.capacity);
    if (!o.json)
      fmt::print("{:<8} {:>3} channels {:>6} ffn {:>14} parameters  {}{}\n", tier.name, tier.capacity.channels,
                 tier.capacity.ffn, cost.parameters, target.string(),
                 rounded ? fmt::format(" (rounded to {})", name) : "");
    list.push_back({{"tier", tier.name},
                    {"folder", target.string()},
                    {"channels", tier.capacity.channels},
                    {"ffn", tier.capacity.ffn},
                    {"parameters", cost.parameters},
                    {"dtype", name},
                    {"rounded", rounded}});
  }
  if (o.json) fmt::print("{}\n", to_text({{"model", o.model}, {"exports", list}}, 2));
}

}  // namespace

void add_export(Verb& app) {
  auto* verb = app.add_subcommand("export", "write one, several or all capacities as standalone model folders");
  auto o = std::make_shared<ExportVerbOptions>();
  verb->add_option("MODEL", o->model, "a family (model folder), or a run")->required();
  verb->add_option("all", o->all, "the word all: every named tier, each in a folder of its own under OUT");
  verb->add_option("--tier", o->tiers, "named tiers, e.g. T4 or T1,T4")->delimiter(',');
  add_number(*verb, "--xi", o->budget, "a budget for the two-rate map", 1e-6, 1);
  add_number(*verb, "--channels", o->channels, "spectral channels to keep", 1, 1 << 24);
  add_number(*verb, "--ffn", o->ffn, "feed-forward units to keep", 1, 1 << 24);
  verb->add_option("--dtype", o->dtype, "stored matrices: f32, bf16, f16, fp8, q8, q4 (the family's own by default)");
  verb->add_option("--shard-bytes", o->shard_bytes, "split the weights into files of at most this size (default 5GB)");
  verb->add_option("-o,--out", o->out, "the new folder, or the folder of folders")->required();
  verb->add_flag("--force", o->force, "replace model folders of these names");
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer(
      "Example: essh export models/tiny all -o exports\n         essh export models/tiny --tier T4 --dtype bf16 -o "
      "tiny-t4");
  verb->callback([o] { run(*o); });
}

}  // namespace essh::verbs
