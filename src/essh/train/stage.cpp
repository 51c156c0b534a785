#include "essh/train/stage.h"

#include <algorithm>

#include "essh/base/error.h"
#include "essh/base/rng.h"

namespace essh {
namespace {

Schedule pretraining_schedule(const OptimizerRecipe& o, Index steps) {
  return {o.rate, o.schedule, o.warmup, o.floor, o.decay_share, steps};
}

class Pretraining final : public Stage {
 public:
  Pretraining(const Recipe& recipe, const ModelConfig& config)
      : Stage({"pretraining", "run.batch", recipe.run.batch, recipe.run.seed, 0,
               pretraining_schedule(recipe.optimizer, recipe.run.steps), DecayGroups::Pretraining,
               recipe.elastic.teacher, static_cast<Index>(recipe.elastic.calibration_tokens)}),
        recipe_(recipe.elastic),
        sampler_(recipe.elastic, config, recipe.run.seed, recipe.run.steps) {}

  std::vector<double> budgets(Index step, double tokens_seen, Index count) const override {
    return sampler_.draw(step, tokens_seen, count);
  }
  MicroBatchPlan plan(double budget) const override {
    // A parent teaches the full capacity like any other; its gradients count in full.
    if (budget == 1.0 && settings.teacher.empty()) return {};
    if (budget == 1.0) return {.full = false, .reduced = ObjectiveWeights{.label = recipe_.label, .kl = recipe_.kl}};
    return {.full = recipe_.joint,
            .budget = budget,
            .reduced = ObjectiveWeights{.label = recipe_.label,
                                        .kl = recipe_.kl,
                                        .ffn_gradient = recipe_.ffn_scale,
                                        .mixer_gradient = recipe_.mixer_scale}};
  }
  CapacitySampler* sampler() override { return &sampler_; }
  bool orders_units(Index steps) const override {
    return recipe_.ordering_period > 0 && recipe_.sampling != "dense" && steps % recipe_.ordering_period == 0 &&
           static_cast<double>(steps) < recipe_.ordering_until * static_cast<double>(settings.schedule.steps);
  }

 private:
  ElasticRecipe recipe_;
  CapacitySampler sampler_;
};

// Of the draws of budgets in refinement, and of an order of the data of its own.
constexpr std::uint64_t kRefinementSeed = 0x5ef1e0u;

double refinement_rate(const Recipe& recipe) {
  if (recipe.refine.rate > 0) return recipe.refine.rate;
  const double last = pretraining_schedule(recipe.optimizer, recipe.run.steps).rate(recipe.run.steps);
  if (!(last > 0)) fail(ErrorKind::Usage, "refine.rate is 0, but pretraining ends at the rate 0 too: give a rate");
  return last;
}

Schedule refinement_schedule(const Recipe& recipe) {
  const bool linear = recipe.refine.schedule == "linear";
  return {.peak = refinement_rate(recipe),
          .shape = linear ? "wsd" : "cosine",
          .warmup = recipe.refine.warmup,
          .decay_share = linear ? 1.0 - recipe.refine.warmup : 0,
          .steps = recipe.refine.steps};
}

bool continues_order(const Recipe& recipe) {
  return recipe.refine.order == "continued";
}

class Refinement final : public Stage {
 public:
  Refinement(const Recipe& recipe, const ModelConfig& config)
      : Stage({"refinement", "refine.batch", recipe.refine.batch,
               recipe.run.seed + (continues_order(recipe) ? 0 : kRefinementSeed),
               continues_order(recipe) ? recipe.run.steps * recipe.run.batch : 0, refinement_schedule(recipe),
               recipe.refine.decay == "all" ? DecayGroups::Refinement : DecayGroups::Pretraining, "", 0,
               recipe.refine.moments == "kept" ? recipe.run.steps : 0}),
        recipe_(recipe),
        shuffles_(recipe.refine.sampling == "shuffle"),
        choices_(shuffles_ ? std::vector<double>() : recipe.refine.budgets) {
    for (const auto& tier : tiers_of(config)) {
      if (shuffles_ && tier.budget < 1) choices_.push_back(tier.budget);
    }
    if (choices_.empty()) choices_ = {2.0 / 32, 4.0 / 32, 8.0 / 32, 16.0 / 32, 24.0 / 32};
    const auto follow = [&](double budget) { return following_budget(budget, recipe.elastic.budget_channels, config); };
    if (!shuffles_) std::ranges::transform(choices_, choices_.begin(), follow);
    teacher_budget_ = follow(recipe.refine.teacher_budget);
  }

  std::vector<double> budgets(Index step, double, Index count) const override {
    Rng rng(recipe_.run.seed ^ kRefinementSeed, static_cast<std::uint64_t>(step));
    const double share = recipe_.refine.smallest_share, smallest = std::ranges::min(choices_);
    const auto goes_to_smallest = [&] { return share > 0 && rng.uniform() < share; };
    std::vector<double> drawn(static_cast<std::size_t>(count));
    if (!shuffles_) {
      const double budget = choices_[rng.below(choices_.size())];
      std::ranges::fill(drawn, goes_to_smallest() ? smallest : budget);
    } else {
      auto order = choices_;
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
      std::size_t next = 0;
      for (double& budget : drawn) budget = goes_to_smallest() ? smallest : order[next++ % order.size()];
    }
    if (recipe_.refine.full_share > 0) {
      for (double& budget : drawn) {
        if (rng.uniform() < recipe_.refine.full_share) budget = 1;
      }
    }
    return drawn;
  }
  MicroBatchPlan plan(double budget) const override {
    // Without full_share a budget of 1 is one of the recipe's own: a slice that is all.
    if (budget == 1 && recipe_.refine.full_share > 0) return {.teacher_budget = teacher_budget_};
    return {.budget = budget,
            .reduced = ObjectiveWeights{.label = recipe_.refine.label,
                                        .kl = recipe_.refine.kl,
                                        .tv = recipe_.refine.tv,
                                        .ffn_gradient = recipe_.elastic.ffn_scale},
            .teacher_budget = teacher_budget_};
  }

 private:
  Recipe recipe_;
  bool shuffles_;
  std::vector<double> choices_;
  double teacher_budget_ = 1;
};

}  // namespace

std::unique_ptr<Stage> make_pretraining(const Recipe& recipe, const ModelConfig& config) {
  return std::make_unique<Pretraining>(recipe, config);
}

std::unique_ptr<Stage> make_refinement(const Recipe& recipe, const ModelConfig& config) {
  return std::make_unique<Refinement>(recipe, config);
}

}  // namespace essh
