#include "essh/train/stage.h"

#include "essh/base/rng.h"

namespace essh {
namespace {

// Refinement reads the data and draws budgets in an order of its own.
constexpr std::uint64_t kRefinementSeed = 0x5ef1e0u;

}  // namespace

PretrainingStage::PretrainingStage(const Recipe& recipe, const ModelConfig& config)
    : Stage({.name = "pretraining",
             .batch_setting = "run.batch",
             .batch = recipe.run.batch,
             .seed = recipe.run.seed,
             .schedule = pretraining_schedule(recipe),
             .decay = DecayGroups::Pretraining,
             .teacher = recipe.elastic.teacher}),
      recipe_(recipe.elastic),
      sampler_(recipe.elastic, config, recipe.run.seed, recipe.run.steps) {}

std::vector<double> PretrainingStage::budgets(Index step, double tokens_seen, Index count) const {
  return sampler_.draw(step, tokens_seen, count);
}

MicroBatchPlan PretrainingStage::plan(double budget) const {
  if (budget == 1.0) return {};
  return {.full = false,
          .budget = budget,
          .reduced = ObjectiveWeights{.label = recipe_.label,
                                      .kl = recipe_.kl,
                                      .ffn_gradient = recipe_.ffn_scale,
                                      .mixer_gradient = recipe_.mixer_scale}};
}

bool PretrainingStage::orders_units(Index steps_done) const {
  const auto& e = recipe_;
  return e.ordering_period > 0 && e.sampling != "dense" && steps_done % e.ordering_period == 0 &&
         static_cast<double>(steps_done) < e.ordering_until * static_cast<double>(settings.schedule.steps);
}

RefinementStage::RefinementStage(const Recipe& recipe, const ModelConfig& config)
    : Stage({.name = "refinement",
             .batch_setting = "refine.batch",
             .batch = recipe.refine.batch,
             .seed = recipe.run.seed + kRefinementSeed,
             .schedule = refinement_schedule(recipe),
             .decay = DecayGroups::Refinement}),
      recipe_(recipe),
      choices_(recipe.refine.budgets) {
  if (recipe.refine.sampling == "shuffle") {
    choices_.clear();
    for (const auto& tier : tiers_of(config)) {
      if (tier.budget < 1) choices_.push_back(tier.budget);
    }
  }
  if (choices_.empty()) choices_ = {2.0 / 32, 4.0 / 32, 8.0 / 32, 16.0 / 32, 24.0 / 32};
}

std::vector<double> RefinementStage::budgets(Index step, double, Index count) const {
  Rng rng(recipe_.run.seed ^ kRefinementSeed, static_cast<std::uint64_t>(step));
  auto order = choices_;
  if (recipe_.refine.sampling == "shuffle") {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  } else {
    order = {choices_[rng.below(choices_.size())]};
  }
  std::vector<double> drawn;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) drawn.push_back(order[i % order.size()]);
  return drawn;
}

MicroBatchPlan RefinementStage::plan(double budget) const {
  return {.full = true,
          .budget = budget,
          .reduced = ObjectiveWeights{.label = 1, .tv = recipe_.refine.tv, .ffn_gradient = recipe_.elastic.ffn_scale}};
}

}  // namespace essh
