#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "essh/train/capacity_sampler.h"
#include "essh/train/objective.h"
#include "essh/train/optimizer.h"
#include "essh/train/schedule.h"

namespace essh {

// The passes over one micro-batch: `full` from the labels, `reduced` at a budget, or both. Where the reduced pass has a
// divergence, its teacher is the capacity of the full pass, observed without learning when there is no such pass, or
// the stage's frozen parent.
struct MicroBatchPlan {
  bool full = true;
  double budget = 1;
  std::optional<ObjectiveWeights> reduced = {};
  double teacher_budget = 1;  // of the full pass and of the teacher

  // The pass that trains all parameters, if there is one, and so sees the activations of every unit.
  bool all_by_label() const { return full && teacher_budget == 1; }
  bool all_by_teacher() const { return !full && budget == 1; }

  bool taught() const { return reduced && (reduced->kl != 0 || reduced->tv != 0); }
};

// A stage of training, as the trainer asks it.
class Stage {
 public:
  struct Settings {
    const char* name;           // in checkpoints
    const char* batch_setting;  // the recipe's name of `batch`
    Index batch;                // sequences per step
    std::uint64_t seed;         // of the order of the data
    Schedule schedule;
    DecayGroups decay;
    std::string teacher = {};      // a model folder: a frozen parent that teaches instead of the current full capacity
    Index calibration_tokens = 0;  // over which the units of the weights to start from are ranked
  };
  explicit Stage(Settings s) : settings(std::move(s)) {}
  virtual ~Stage() = default;

  const Settings settings;

  // Budgets of the `count` micro-batches of a step, 1 for full capacity.
  virtual std::vector<double> budgets(Index step, double tokens_seen, Index count) const = 0;
  virtual MicroBatchPlan plan(double budget) const = 0;
  // What learns from validation losses which budgets to draw; null in a stage that does not.
  virtual CapacitySampler* sampler() { return nullptr; }
  // Whether feed-forward units are ordered by importance after this many steps.
  virtual bool orders_units(Index) const { return false; }
};

// Algorithm 1 of the paper: every micro-batch at full capacity or at a sampled one, or, jointly, at both.
std::unique_ptr<Stage> make_pretraining(const Recipe& recipe, const ModelConfig& config);
// Shared refinement: every micro-batch at full capacity and at one below, drawn per step or shuffled across the
// micro-batches. The rate falls to zero.
std::unique_ptr<Stage> make_refinement(const Recipe& recipe, const ModelConfig& config);

}  // namespace essh
