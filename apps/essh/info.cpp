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

void info(const Options& o) {
  const bool folder = std::filesystem::is_directory(o.what);
  const auto config = folder ? read_config(model_of_run(o.what)) : preset(o.what);
  Json tiers = Json::array();
  if (!o.json) {
    fmt::print(
        "{}: {} blocks ({} with attention, window {}), width {}, vocabulary {}, {} channels x {} modes x {} values\n\n",
        o.what, config.num_hidden_layers, config.attention_count(), config.sliding_window, config.hidden_size,
        config.vocab_size, config.spectral_channels, config.spectral_modes, config.channel_width);
    fmt::print("{:<6} {:>7} {:>9} {:>6} {:>15} {:>11} {:>11} {:>13}\n", "tier", "budget", "channels", "ffn",
               "parameters", "state", "window KV", "FLOPs/token");
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
