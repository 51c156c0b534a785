#include "essh/train/capacity_sampler.h"

#include <algorithm>
#include <cmath>

#include "essh/base/rng.h"
#include "essh/model/cost.h"

namespace essh {
namespace {

constexpr Index kWeightPeriod = 500;
constexpr double kLeastShare = 0.5, kMostShare = 0.9, kShareStep = 0.05;

bool weighted(const std::string& sampling) {
  return sampling == "gap" || sampling == "adaptive";
}

std::vector<double> sampled_budgets(const ElasticRecipe& recipe, const ModelConfig& config) {
  std::vector<double> budgets;
  if (!recipe.parameter_targets.empty()) {
    const auto parameters = [&](Capacity capacity) {
      return static_cast<double>(cost_of(config, capacity).parameters);
    };
    const double full = parameters(full_capacity(config)), least = parameters(capacity_at(config, 1e-9));
    for (const double target : recipe.parameter_targets) {
      const double wanted = target <= 1 ? target * full : target;
      if (wanted < least || wanted > full)
        fail(ErrorKind::Usage, "elastic.parameter_targets: {}: the capacities of this model have {} to {} parameters",
             target, least, full);
      budgets.push_back(budget_for_parameters(config, wanted));
    }
    return budgets;
  }
  for (const double budget : recipe.budgets.empty() ? training_budgets() : recipe.budgets)
    budgets.push_back(following_budget(budget, recipe.budget_channels, config));
  return budgets;
}

}  // namespace

double following_budget(double budget, Index budget_channels, const ModelConfig& config) {
  const Index channels = full_capacity(config).channels;
  if (budget_channels == 0 || channels == 0) return budget;
  return std::min(1.0, budget * static_cast<double>(budget_channels) / static_cast<double>(channels));
}

CapacitySampler::CapacitySampler(const ElasticRecipe& recipe, const ModelConfig& config, std::uint64_t seed,
                                 Index steps)
    : recipe_(recipe),
      config_(config),
      seed_(seed),
      steps_(steps),
      budgets_(config.elastic.is_family() ? sampled_budgets(recipe, config) : std::vector<double>{1}),
      share_(recipe.full_share) {
  if (!config.elastic.is_family()) recipe_.sampling = "dense";
}

double CapacitySampler::full_share(Index step) const {
  if (recipe_.sampling == "ramp") {
    const double half = static_cast<double>(steps_) / 2;
    const double progress = std::clamp((static_cast<double>(step) - half) / half, 0.0, 1.0);
    return recipe_.full_share + (1 - recipe_.full_share) * progress;
  }
  return share_;
}

std::vector<double> CapacitySampler::available(Index step) const {
  if (recipe_.sampling != "progressive") return budgets_;
  const double progress = static_cast<double>(step) / static_cast<double>(steps_);
  std::vector<double> parts = {16, 24};
  if (progress >= 0.15) parts.insert(parts.end(), {8, 12});
  if (progress >= 0.30) parts.insert(parts.end(), {4, 5, 6});
  if (progress >= 0.45) parts.insert(parts.end(), {2, 3});
  for (auto& part : parts) part = following_budget(part / 32, recipe_.budget_channels, config_);
  return parts;
}

// Linear in log2 of the channel count (without channels, of the units) between the capacities that were validated, flat
// outside.
double CapacitySampler::weight_of(double budget) const {
  const auto height = [&](double xi) {
    const auto capacity = capacity_at(config_, xi);
    return std::log2(static_cast<double>(capacity.channels > 0 ? capacity.channels : capacity.ffn));
  };
  const double at = height(budget);
  auto above = weights_.begin();
  while (above != weights_.end() && height(above->first) < at) ++above;
  if (above == weights_.begin()) return above->second;
  if (above == weights_.end()) return std::prev(above)->second;
  const auto below = std::prev(above);
  const double low = height(below->first), high = height(above->first);
  return high == low ? above->second : below->second + (above->second - below->second) * (at - low) / (high - low);
}

bool CapacitySampler::warming_up(Index step, double tokens_seen) const {
  return tokens_seen < recipe_.warmup_tokens &&
         static_cast<double>(step) < recipe_.warmup_share * static_cast<double>(steps_);
}

std::vector<double> CapacitySampler::draw(Index step, double tokens_seen, Index count) const {
  std::vector<double> drawn(static_cast<std::size_t>(count), 1.0);
  const bool active = weighted(recipe_.sampling) ? !weights_.empty() : !warming_up(step, tokens_seen);
  if (recipe_.sampling == "dense" || !active) return drawn;
  auto choices = available(step);
  std::vector<double> weights(choices.size(), 1.0);
  if (weighted(recipe_.sampling)) {
    std::erase(choices, 1.0);
    weights.clear();
    double total = 0;
    for (const double budget : choices) weights.push_back(std::max(0.0, weight_of(budget)));
    for (const double weight : weights) total += weight;
    for (auto& weight : weights) weight = total > 0 ? weight / total : 1.0 / static_cast<double>(choices.size());
    if (recipe_.sampling == "adaptive") {
      for (auto& weight : weights) weight = 0.5 * weight + 0.5 / static_cast<double>(choices.size());
    }
  }
  double total = 0;
  for (const double weight : weights) total += weight;
  const double reduced = 1 - full_share(step);
  for (Index slot = 0; slot < count; ++slot) {
    // Reserved slots lie evenly between the others, counted over all steps: a step of few micro-batches leaves its
    // remainder to the next.
    const auto before = static_cast<double>(step * count + slot);
    const bool reserved = std::floor((before + 1) * reduced + 1e-9) <= std::floor(before * reduced + 1e-9);
    if (reserved) continue;
    Rng rng(seed_ ^ 0xca9ac17aULL, static_cast<std::uint64_t>(step) * 0x100000 + static_cast<std::uint64_t>(slot));
    if (recipe_.smallest_share > 0 && rng.uniform() < recipe_.smallest_share) {
      drawn[static_cast<std::size_t>(slot)] = *std::ranges::min_element(choices);
      continue;
    }
    double point = rng.uniform() * total;
    std::size_t choice = 0;
    while (choice + 1 < choices.size() && point >= weights[choice]) point -= weights[choice++];
    drawn[static_cast<std::size_t>(slot)] = choices[choice];
  }
  return drawn;
}

bool CapacitySampler::wants_validation(Index step) const {
  return weighted(recipe_.sampling) && step % kWeightPeriod == 0;
}

void CapacitySampler::validated(const std::map<double, double>& losses) {
  if (recipe_.sampling == "gap") {
    weights_.clear();
    for (const auto& [budget, loss] : losses) {
      if (budget < 1) weights_[budget] = std::max(0.0, loss - losses.at(1.0));
    }
  } else if (recipe_.sampling == "adaptive" && !losses_.empty()) {
    double mean = 0;
    for (const auto& [budget, loss] : losses)
      mean += std::abs(losses_.at(budget) - loss) / static_cast<double>(losses.size());
    const double temperature = std::max(mean / 2, 1e-12);
    std::map<double, double> raw;
    double total = 0;
    // Shifted by the largest exponent: only ratios count.
    double least = INFINITY;
    for (const auto& [budget, loss] : losses) least = std::min(least, losses_.at(budget) - loss);
    for (const auto& [budget, loss] : losses)
      total += raw[budget] = std::exp(-(losses_.at(budget) - loss - least) / temperature);
    const double wanted = std::clamp(raw.at(1.0) / total, kLeastShare, kMostShare);
    share_ = weights_.empty() ? wanted : std::clamp(wanted, share_ - kShareStep, share_ + kShareStep);
    weights_.clear();
    for (const auto& [budget, weight] : raw) {
      if (budget < 1) weights_[budget] = weight;
    }
  }
  losses_ = losses;
}

std::vector<double> CapacitySampler::state() const {
  std::vector<double> state = {share_, static_cast<double>(weights_.size())};
  for (const auto& [budget, weight] : weights_) state.insert(state.end(), {budget, weight});
  for (const auto& [budget, loss] : losses_) state.insert(state.end(), {budget, loss});
  return state;
}

void CapacitySampler::restore(const std::vector<double>& state) {
  const auto bad = [] { fail(ErrorKind::BadFile, "the checkpoint's capacity weights are malformed"); };
  if (state.size() < 2 || state.size() % 2 != 0 ||
      !(state[1] >= 0 && state[1] <= static_cast<double>((state.size() - 2) / 2)))
    bad();
  share_ = state[0];
  weights_.clear();
  losses_.clear();
  for (std::size_t i = 2; i < state.size(); i += 2) {
    ((i - 2) / 2 < static_cast<std::size_t>(state[1]) ? weights_ : losses_)[state[i]] = state[i + 1];
  }
}

std::optional<ReducedShares> reduced_shares(const Recipe& recipe, const ModelConfig& config) {
  if (weighted(recipe.elastic.sampling)) return std::nullopt;
  const CapacitySampler sampler(recipe.elastic, config, recipe.run.seed, recipe.run.steps);
  const Index count = recipe.run.batch / recipe.run.micro_batch;
  Index reduced = 0, mixed_steps = 0;
  for (Index step = 0; step < recipe.run.steps; ++step) {
    const double tokens = static_cast<double>(step * recipe.run.batch * recipe.data.context);
    if (sampler.warming_up(step, tokens)) continue;
    ++mixed_steps;
    const auto drawn = sampler.draw(step, tokens, count);
    reduced += count - std::count(drawn.begin(), drawn.end(), 1.0);
  }
  const auto share = [&](Index steps) {
    return static_cast<double>(reduced) / static_cast<double>(std::max<Index>(1, steps * count));
  };
  return ReducedShares{share(recipe.run.steps), share(mixed_steps)};
}

}  // namespace essh
