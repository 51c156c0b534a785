#include "essh/model/capacity.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "essh/base/spelling.h"
#include "essh/model/config.h"

namespace essh {

std::vector<double> deployment_budgets() {
  std::vector<double> budgets;
  for (const double part : {2, 4, 7, 10, 13, 17, 20, 24, 28, 32}) budgets.push_back(part / 32);
  return budgets;
}

std::vector<double> training_budgets() {
  return {1.0 / 16, 3.0 / 32, 1.0 / 8, 5.0 / 32, 3.0 / 16, 0.25, 0.375, 0.5, 0.75, 1.0};
}

Capacity full_capacity(const ModelConfig& config) {
  return {config.spectral_channels, config.intermediate_size};
}

Capacity capacity_at(const ModelConfig& config, double budget) {
  if (!(budget > 0 && budget <= 1)) fail(ErrorKind::Usage, "a budget must lie in (0, 1], got {}", budget);
  const auto full = full_capacity(config);
  const double a = config.elastic.channel_exponent, b = config.elastic.ffn_exponent;
  const double channels = std::round(static_cast<double>(full.channels) * std::pow(budget, a));
  const double units = std::floor(static_cast<double>(full.ffn) * std::pow(budget, b) / 64);
  return {std::clamp<Index>(static_cast<Index>(channels), 1, full.channels),
          std::min<Index>(64 * std::max<Index>(1, static_cast<Index>(units)), full.ffn)};
}

std::vector<Tier> tiers_of(const ModelConfig& config) {
  if (config.elastic.channels == 0) return {{"full", 1, full_capacity(config)}};
  std::vector<Tier> tiers;
  for (std::size_t i = 0; i < config.elastic.tiers.size(); ++i) {
    tiers.push_back({fmt::format("T{}", i + 1), config.elastic.tiers[i], capacity_at(config, config.elastic.tiers[i])});
  }
  return tiers;
}

Tier custom_tier(const ModelConfig& config, Index channels, Index ffn) {
  const auto full = full_capacity(config);
  if (channels < 1 || channels > full.channels || ffn < 1 || ffn > full.ffn) {
    fail(ErrorKind::Usage, "capacity {}x{}: this model has 1 to {} channels and 1 to {} feed-forward units", channels,
         ffn, full.channels, full.ffn);
  }
  return {"custom", 0, {channels, ffn}};
}

Tier find_tier(const ModelConfig& config, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& tier : tiers_of(config)) {
    if (tier.name == name) return tier;
    names.push_back(tier.name);
  }
  if (name == "full") return {"full", 1, full_capacity(config)};
  const auto number = [&](std::string_view text, auto& value) {
    const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    return status == std::errc{} && rest == text.data() + text.size();
  };
  if (double budget = 0; name.starts_with("xi=") && number(std::string_view(name).substr(3), budget)) {
    return {"custom", budget, capacity_at(config, budget)};
  }
  if (const auto cross = name.find('x'); cross != std::string::npos) {
    Index channels = 0, ffn = 0;
    if (number(std::string_view(name).substr(0, cross), channels) &&
        number(std::string_view(name).substr(cross + 1), ffn)) {
      return custom_tier(config, channels, ffn);
    }
  }
  fail(ErrorKind::Usage, "no tier is called \"{}\"{} (there are {}; also full, xi=0.3, 18x1792)", name.substr(0, 40),
       suggestion(name, names), fmt::join(names, ", "));
}

}  // namespace essh
