#include <filesystem>
#include <memory>

#include "apps/essh/verbs.h"
#include "essh/base/json.h"
#include "essh/base/units.h"
#include "essh/model/cost.h"
#include "essh/store/model_folder.h"
#include "essh/store/run_folder.h"

namespace essh::verbs {
namespace {

struct Options {
  std::string what;
  bool json = false;
};

// "19 spectral: 32 channels x 8 modes x 28 values; 3 sliding attention: 14 heads of 64, window 2048"
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

void info(const Options& o) {
  const bool folder = std::filesystem::is_directory(o.what);
  const auto config = folder ? read_config(model_of_run(o.what)) : preset(o.what);
  Json tiers = Json::array();
  if (!o.json) {
    fmt::print("{}: {} blocks ({}), width {}, vocabulary {}\n\n", o.what, config.num_hidden_layers, mixers_of(config),
               config.hidden_size, config.vocab_size);
    fmt::print("{:<6} {:>7} {:>9} {:>6} {:>15} {:>11} {:>11} {:>13}\n", "tier", "budget", "channels", "ffn",
               "parameters", "state", "KV", "FLOPs/token");
  }
  for (const auto& tier : tiers_of(config)) {
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
      fmt::print("{:<6} {:>7.4g} {:>9} {:>6} {:>15} {:>11} {:>11} {:>13}\n", tier.name, tier.budget,
                 tier.capacity.channels, tier.capacity.ffn, cost.parameters,
                 format_bytes(static_cast<double>(cost.state_bytes)), format_bytes(static_cast<double>(cost.kv_bytes)),
                 format_count(static_cast<double>(cost.flops_per_token)));
    }
  }
  if (o.json) fmt::print("{}\n", to_text({{"preset", o.what}, {"tiers", tiers}}, 2));
}

}  // namespace

void add_info(CLI::App& app) {
  auto* verb = app.add_subcommand("info", "tiers of a preset or a model: parameters, state, KV, FLOPs");
  auto o = std::make_shared<Options>();
  verb->add_option("MODEL", o->what, fmt::format("a model folder, or a preset: {}", fmt::join(preset_names(), ", ")))
      ->required();
  verb->add_flag("--json", o->json, "print JSON");
  verb->footer("Example: essh info 370m --json");
  verb->callback([o] { info(*o); });
}

}  // namespace essh::verbs
