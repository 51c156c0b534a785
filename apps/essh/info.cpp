#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/units.h"
#include "essh/model/cost.h"
#include "essh/store/model_folder.h"
#include "essh/store/provenance.h"
#include "essh/store/run_folder.h"
#include "essh/text/tokenizer.h"

namespace essh::verbs {
namespace {
namespace fs = std::filesystem;

struct InfoOptions {
  std::string what;
  bool json = false;
};

// E.g. "19 spectral: 32 channels x 8 modes x 28 values; 3 sliding attention: 14 heads of 64, window 2048"
std::string mixers_of(const ModelConfig& c) {
  const auto heads = [](const AttentionSizes& a) {
    return fmt::format("{} heads of {}{}", a.num_attention_heads, a.head_dim,
                       a.key_value_heads() == a.num_attention_heads
                           ? ""
                           : fmt::format(", {} of keys and values", a.key_value_heads()));
  };
  std::vector<std::string> kinds;
  const auto add = [&](MixerKind kind, const char* name, const std::string& sizes) {
    Index count = 0;
    for (Index layer = 0; layer < c.num_hidden_layers; ++layer) count += c.kind(layer) == kind;
    if (count > 0) kinds.push_back(fmt::format("{} {}: {}", count, name, sizes));
  };
  add(MixerKind::Spectral, "spectral",
      fmt::format("{} channels x {} modes x {} values", c.spectral_channels, c.spectral_modes, c.channel_width));
  add(MixerKind::SlidingAttention, "sliding attention",
      fmt::format("{}, window {}", heads(c.sliding_attention), c.sliding_window));
  add(MixerKind::FullAttention, "full attention", heads(c.full_attention));
  return fmt::format("{}", fmt::join(kinds, "; "));
}

// Facts about a folder besides its sizes.
struct FolderFacts {
  fs::path folder;
  Provenance origin;
  std::string tokenizer = {};  // empty if none
  std::uint64_t disk_bytes = 0;
};

FolderFacts facts_of(const fs::path& folder) {
  FolderFacts facts{.folder = folder, .origin = read_provenance(folder)};
  if (fs::exists(folder / "tokenizer.json"))
    facts.tokenizer = fmt::format("tokenizer.json, {} entries", load_tokenizer(folder)->vocab_size());
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) facts.disk_bytes += entry.file_size();
  }
  return facts;
}

void print(const FolderFacts& facts, const ModelConfig& config) {
  const auto& origin = facts.origin;
  if (!origin.tier.empty()) {
    fmt::print("export of tier {}{} of the family {:.12}...\n", origin.tier,
               origin.xi > 0 ? fmt::format(" (xi={:.6g})", origin.xi) : "", origin.parent);
  } else if (!origin.kind.empty()) {
    fmt::print("{} family\n", origin.kind);
  }
  fmt::print("{} matrices, {} on disk, {}\n", matrix_format_name(matrix_format(config)),
             format_bytes(static_cast<double>(facts.disk_bytes)),
             facts.tokenizer.empty() ? "no tokenizer" : facts.tokenizer);
}

Json to_json(const FolderFacts& facts, const ModelConfig& config) {
  const auto known = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"folder", facts.folder.string()},
          {"kind", known(facts.origin.kind)},
          {"tier", known(facts.origin.tier)},
          {"parent", known(facts.origin.parent)},
          {"dtype", matrix_format_name(matrix_format(config))},
          {"tokenizer", known(facts.tokenizer)},
          {"disk_bytes", facts.disk_bytes}};
}

// The only tier of an export has the name it has in its family.
std::vector<Tier> tiers_to_show(const ModelConfig& config, const std::optional<FolderFacts>& facts) {
  auto tiers = tiers_of(config);
  if (!config.elastic.is_family() && facts && !facts->origin.tier.empty())
    tiers.front() = {facts->origin.tier, facts->origin.xi, tiers.front().capacity};
  return tiers;
}

void info(const InfoOptions& o) {
  std::optional<FolderFacts> facts;
  if (fs::is_directory(o.what)) facts = facts_of(model_of_run(o.what));
  const bool is_path = o.what.find('/') != std::string::npos;
  const auto config = facts ? read_config(facts->folder) : is_path ? read_config(o.what) : preset(o.what);
  Json tiers = Json::array();
  if (!o.json) {
    fmt::print("{}: {} blocks ({}), width {}, vocabulary {}\n", o.what, config.num_hidden_layers, mixers_of(config),
               config.hidden_size, config.vocab_size);
    if (facts) print(*facts, config);
    fmt::print("\n{:<10} {:>7} {:>9} {:>6} {:>15} {:>11} {:>11} {:>13}\n", "tier", "budget", "channels", "ffn",
               "parameters", "state", "KV", "FLOPs/token");
  }
  for (const auto& tier : tiers_to_show(config, facts)) {
    const auto cost = cost_of(config, tier.capacity);
    tiers.push_back({{"tier", tier.name},
                     {"xi", tier.budget},
                     {"channels", tier.capacity.channels},
                     {"ffn", tier.capacity.ffn},
                     {"parameters", cost.parameters},
                     {"state_bytes", cost.state_bytes},
                     {"kv_bytes", cost.kv_bytes},
                     {"flops_per_token", cost.flops_per_token}});
    if (!o.json) {
      fmt::print("{:<10} {:>7} {:>9} {:>6} {:>15} {:>11} {:>11} {:>13}\n", tier.name,
                 tier.budget > 0 ? fmt::format("{:.4g}", tier.budget) : "-", tier.capacity.channels, tier.capacity.ffn,
                 cost.parameters, format_bytes(static_cast<double>(cost.state_bytes)),
                 format_bytes(static_cast<double>(cost.kv_bytes)),
                 format_count(static_cast<double>(cost.flops_per_token)));
    }
  }
  if (!o.json) return;
  Json object = {{"preset", o.what}, {"tiers", tiers}};
  if (facts) object.update(to_json(*facts, config));
  fmt::print("{}\n", to_text(object, 2));
}

}  // namespace

void add_info(Verb& app) {
  auto* verb = app.add_subcommand(
      "info", "tiers of a preset or a model: parameters, state, KV, FLOPs; of a folder also where it comes from");
  auto o = std::make_shared<InfoOptions>();
  verb->add_option("MODEL", o->what,
                   fmt::format("a model folder, a run, or a preset: {}", fmt::join(preset_names(), ", ")))
      ->required();
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer("Example: essh info 370m --json");
  verb->callback([o] { info(*o); });
}

}  // namespace essh::verbs
