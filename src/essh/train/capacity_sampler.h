#pragma once
#include <map>
#include <optional>
#include <vector>

#include "essh/train/recipe.h"

namespace essh {

// Draws the capacity of each micro-batch: a pure function of the seed, the step, the micro-batch's index in the global
// step, and the weights set by validation results. The weights are the only state.
class CapacitySampler {
 public:
  CapacitySampler(const ElasticRecipe& recipe, const ModelConfig& config, std::uint64_t seed, Index steps);

  // Budgets of the step's `count` micro-batches, 1 for full capacity.
  std::vector<double> draw(Index step, double tokens_seen, Index count) const;
  // True while the recipe's warm-up keeps every micro-batch at full capacity.
  bool warming_up(Index step, double tokens_seen) const;

  // For gap and adaptive sampling: validation losses by budget, 1 included. Called before the first step and every 500
  // steps.
  bool wants_validation(Index step) const;
  void validated(const std::map<double, double>& losses);

  // Budgets whose losses validated() needs: the deployment tiers.
  const std::vector<double>& budgets() const { return budgets_; }
  double full_share(Index step) const;

  // The state, for checkpoints.
  std::vector<double> state() const;
  void restore(const std::vector<double>& state);

 private:
  std::vector<double> available(Index step) const;
  double weight_of(double budget) const;

  ElasticRecipe recipe_;
  ModelConfig config_;
  std::uint64_t seed_;
  Index steps_;
  std::vector<double> budgets_;
  // State of gap and adaptive sampling: weights by budget (empty until active), last losses, share of full capacity.
  std::map<double, double> weights_;
  std::map<double, double> losses_;
  double share_;
};

// Converts a budget of a recipe for this model: with budget_channels it is a number of channels, clamped to all.
double following_budget(double budget, Index budget_channels, const ModelConfig& config);

// Share of a run's micro-batches below full capacity: of all, and of those after the warm-up.
struct ReducedShares {
  double all = 0, after_warmup = 0;
};
// Expected shares of a recipe. Empty for gap and adaptive sampling, which depend on validation losses.
std::optional<ReducedShares> reduced_shares(const Recipe& recipe, const ModelConfig& config);

}  // namespace essh
