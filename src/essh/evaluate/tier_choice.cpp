#include "essh/evaluate/tier_choice.h"

#include <algorithm>

#include "essh/store/provenance.h"

namespace essh {

std::vector<Tier> choose_tiers(const std::filesystem::path& folder, const ModelConfig& config,
                               const std::vector<std::string>& names) {
  std::vector<Tier> tiers;
  const auto add = [&](Tier tier) {
    if (std::ranges::none_of(tiers, [&](const Tier& other) { return other.capacity == tier.capacity; }))
      tiers.push_back(std::move(tier));
  };
  for (const auto& name : names) {
    if (name == "all") {
      for (auto& tier : tiers_of(config)) add(std::move(tier));
    } else {
      add(find_tier(folder, config, name));
    }
  }
  return tiers;
}

}  // namespace essh
