#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "essh/train/capacity_sampler.h"
#include "essh/train/objective.h"
#include "essh/train/optimizer.h"
#include "essh/train/schedule.h"

namespace essh {

// The passes over one micro-batch: `full`, `reduced` at a budget, or both. The teacher of a reduced pass is the
// capacity of the full pass, run without gradient if there is no full pass, or the stage's frozen parent.
struct MicroBatchPlan {
  bool full = true;
  double budget = 1;
  std::optional<ObjectiveWeights> reduced = {};
  double teacher_budget = 1;  // of the full pass and of the teacher

  // The pass over all parameters, if any; it yields the activations of every unit.
  bool all_by_label() const { return full && teacher_budget == 1; }
  bool all_by_teacher() const { return !full && budget == 1; }

  bool taught() const { return reduced && (reduced->kl != 0 || reduced->tv != 0); }
};

// The definition of a training stage.
class Stage {
 public:
  struct Settings {
    const char* name;           // in checkpoints
    const char* batch_setting;  // name of `batch` in the recipe
    Index batch;                // sequences per step
    std::uint64_t seed;         // of the order of the data
    Index first_sequence;       // in that order; not 0 if the stage goes on with pretraining's order
    Schedule schedule;
    DecayGroups decay;
    std::string teacher = {};      // model folder of a frozen parent that teaches instead of the current full capacity
    Index calibration_tokens = 0;  // for ranking the units of the initial weights
    Index inherited_steps = 0;     // of pretraining, whose optimizer states this stage takes over; 0: starts with zeros
  };
  explicit Stage(Settings s) : settings(std::move(s)) {}
  virtual ~Stage() = default;

  const Settings settings;

  // Budgets of the `count` micro-batches of a step, 1 for full capacity.
  virtual std::vector<double> budgets(Index step, double tokens_seen, Index count) const = 0;
  virtual MicroBatchPlan plan(double budget) const = 0;
  // The sampler that follows validation losses; null if the stage has none.
  virtual CapacitySampler* sampler() { return nullptr; }
  // Whether feed-forward units are ordered by importance after this many steps.
  virtual bool orders_units(Index) const { return false; }
};

// Algorithm 1 of the paper: every micro-batch at full capacity or at a sampled one, or, jointly, at both.
std::unique_ptr<Stage> make_pretraining(const Recipe& recipe, const ModelConfig& config);
// Shared refinement: every micro-batch at full capacity and at one below, drawn per step or shuffled across the
// micro-batches. The learning rate falls to zero.
std::unique_ptr<Stage> make_refinement(const Recipe& recipe, const ModelConfig& config);

}  // namespace essh
