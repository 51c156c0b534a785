#include "essh/evaluate/model_argument.h"

#include <algorithm>

#include "essh/base/error.h"

namespace essh {
namespace fs = std::filesystem;

fs::path find_model_folder(const fs::path& folder) {
  if (fs::exists(folder / "config.json")) return folder;
  if (fs::exists(folder / kRunModel / "config.json")) return folder / kRunModel;
  if (!fs::is_directory(folder)) fail(ErrorKind::BadFile, "{}: no such folder; give a model or a run", folder.string());
  fail(ErrorKind::BadFile, "{}: neither a model (no config.json) nor a run with one (no {}/config.json)",
       folder.string(), kRunModel);
}

std::vector<Tier> choose_tiers(const ModelConfig& config, const std::vector<std::string>& names) {
  std::vector<Tier> tiers;
  const auto add = [&](Tier tier) {
    if (std::ranges::none_of(tiers, [&](const Tier& other) { return other.capacity == tier.capacity; }))
      tiers.push_back(std::move(tier));
  };
  for (const auto& name : names) {
    if (name == "all") {
      for (auto& tier : tiers_of(config)) add(std::move(tier));
    } else {
      add(find_tier(config, name));
    }
  }
  return tiers;
}

}  // namespace essh
