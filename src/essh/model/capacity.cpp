#include "essh/model/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "essh/base/spelling.h"
#include "essh/model/config.h"

namespace essh {
namespace {

Index count_at(const ElasticAxis& axis, Index full, double budget) {
  if (axis.full == 0) return full;
  const double multiples =
      static_cast<double>(full) * std::pow(budget, axis.exponent) / static_cast<double>(axis.multiple);
  const double rounded = axis.rounding == "down" ? std::floor(multiples) : std::round(multiples);
  return std::min(full, axis.multiple * std::max<Index>(1, static_cast<Index>(rounded)));
}

template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc{} && rest == text.data() + text.size();
}

}  // namespace

ElasticConfig two_rate(Index channels, Index ffn, std::vector<double> tiers, double channel_exponent,
                       double ffn_exponent) {
  return {.channels = {.full = channels, .exponent = channel_exponent},
          .ffn = {.full = ffn, .exponent = ffn_exponent, .multiple = 64, .rounding = "down"},
          .tiers = std::move(tiers)};
}

std::vector<double> deployment_budgets() {
  std::vector<double> budgets;
  for (const double part : {2, 4, 7, 10, 13, 17, 20, 24, 28, 32}) budgets.push_back(part / 32);
  return budgets;
}

std::vector<double> training_budgets() {
  return {1.0 / 16, 3.0 / 32, 1.0 / 8, 5.0 / 32, 3.0 / 16, 0.25, 0.375, 0.5, 0.75, 1.0};
}

Capacity full_capacity(const ModelConfig& config) {
  return {config.has(MixerKind::Spectral) ? config.spectral_channels : 0, config.intermediate_size};
}

Capacity capacity_at(const ModelConfig& config, double budget) {
  if (!(budget > 0 && budget <= 1)) fail(ErrorKind::Usage, "a budget must lie in (0, 1], got {}", budget);
  const auto full = full_capacity(config);
  return {count_at(config.elastic.channels, full.channels, budget), count_at(config.elastic.ffn, full.ffn, budget)};
}

std::string sizes_of(const ModelConfig& config, Capacity capacity) {
  return config.has(MixerKind::Spectral) ? fmt::format("{}x{}", capacity.channels, capacity.ffn)
                                         : fmt::format("{}", capacity.ffn);
}

double slope_share(const ModelConfig& config, Capacity capacity) {
  const auto full = full_capacity(config);
  const Axis axis = config.elastic.ffn.full > 0 ? Axis::Ffn : Axis::Channels;
  const double lacking = 1 - static_cast<double>(capacity[axis]) / static_cast<double>(full[axis]);
  return lacking * lacking;
}

std::vector<Tier> tiers_of(const ModelConfig& config) {
  if (!config.elastic.is_family()) return {{"full", 1, full_capacity(config)}};
  std::vector<Tier> tiers;
  for (std::size_t i = 0; i < config.elastic.tiers.size(); ++i) {
    tiers.push_back({fmt::format("T{}", i + 1), config.elastic.tiers[i], capacity_at(config, config.elastic.tiers[i])});
  }
  return tiers;
}

Tier custom_tier(const ModelConfig& config, Capacity capacity) {
  const auto full = full_capacity(config);
  const auto inside = [](Index count, Index most) { return count >= std::min<Index>(1, most) && count <= most; };
  if (!inside(capacity.channels, full.channels) || !inside(capacity.ffn, full.ffn)) {
    fail(ErrorKind::Usage, "capacity {}: this model has 1 to {} channels and 1 to {} feed-forward units",
         sizes_of(config, capacity), full.channels, full.ffn);
  }
  return {sizes_of(config, capacity), 0, capacity};
}

Tier find_tier(const ModelConfig& config, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& tier : tiers_of(config)) {
    if (tier.name == name) return tier;
    names.push_back(tier.name);
  }
  if (name == "full") return {"full", 1, full_capacity(config)};
  const std::string_view text = name;
  if (double budget = 0; text.starts_with("xi=") && parse_number(text.substr(3), budget))
    return {name, budget, capacity_at(config, budget)};
  Capacity capacity;
  const auto cross = text.find('x');
  const bool both = cross != std::string::npos && parse_number(text.substr(0, cross), capacity.channels) &&
                    parse_number(text.substr(cross + 1), capacity.ffn);
  if (config.has(MixerKind::Spectral) ? both : parse_number(text, capacity.ffn)) return custom_tier(config, capacity);
  fail(ErrorKind::Usage, "no tier is called \"{}\"{} (there are {}; also full, xi=0.3, {})", name.substr(0, 40),
       suggestion(name, names), fmt::join(names, ", "), sizes_of(config, capacity_at(config, 0.3)));
}

}  // namespace essh
