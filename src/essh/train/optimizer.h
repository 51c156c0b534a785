#pragma once
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"
#include "essh/train/recipe.h"

namespace essh {

// Which tensors weight decay touches: in pretraining matrices and zero-lag tables; in refinement everything of two
// dimensions.
enum class DecayGroups { Pretraining, Refinement };

// AdamW over the flat array of parameters. Frozen tensors keep their values and moments.
class Optimizer {
 public:
  Optimizer(const ParameterLayout& layout, const OptimizerRecipe& recipe, DecayGroups groups, std::vector<bool> frozen);

  // Norm of the gradient over the tensors that learn; does not depend on the number of threads.
  double norm(std::span<const float> gradient) const;
  // One step at a learning rate, the gradient multiplied by `clip`.
  void step(Stream& stream, std::span<float> weights, std::span<const float> gradient, double rate, double clip);

  std::span<float> first() { return first_; }
  std::span<float> second() { return second_; }
  std::span<const float> first() const { return first_; }
  std::span<const float> second() const { return second_; }
  Index steps() const { return steps_; }
  void set_steps(Index steps) { steps_ = steps; }

 private:
  const ParameterLayout& layout_;
  OptimizerRecipe recipe_;
  DecayGroups groups_;
  std::vector<bool> frozen_;
  std::vector<float> first_, second_;
  Index steps_ = 0;
};

// The factor that brings a gradient of this norm to at most `limit`; 1 when the limit is 0.
double clip_factor(double norm, double limit);

// The tensors that an ablation keeps at their initial values: gates at one, the clock without the token.
std::vector<bool> frozen_tensors(const ParameterLayout& layout, const ModelRecipe& recipe);

}  // namespace essh
