#pragma once
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"
#include "essh/train/recipe.h"
#include "essh/train/shards.h"

namespace essh {

// Which tensors weight decay touches: in pretraining matrices and zero-lag tables; in refinement everything of two
// dimensions.
enum class DecayGroups { Pretraining, Refinement };

// AdamW over the flat array of parameters on a device, of which this rank updates its parts. Frozen tensors keep their
// values and moments.
class Optimizer {
 public:
  // `shards` and `stream` outlive it.
  Optimizer(const ParameterLayout& layout, const OptimizerRecipe& recipe, DecayGroups groups,
            const std::vector<bool>& frozen, Shards& shards, Stream& stream);

  // sum += squares of the gradient over the tensors that learn, in this rank's parts.
  void add_squares(Vector<const float> gradient, double* sum);
  // One step at a learning rate, the gradient multiplied by `clip`; the other ranks' parts of the weights are taken
  // from them. A collective. `rounded` (may be empty) follows this rank's parts of the weights.
  void step(Vector<float> weights, Vector<BFloat16> rounded, Vector<const float> gradient, double rate, double clip);

  // This rank's parts.
  Vector<float> first() const { return first_.view(); }
  Vector<float> second() const { return second_.view(); }
  Index steps() const { return steps_; }
  void set_steps(Index steps) { steps_ = steps; }

 private:
  // Neighbouring tensors that are treated alike, and the gaps between them, which hold zeros.
  struct Run {
    Index begin, end;
    bool decays;
  };

  OptimizerRecipe recipe_;
  std::vector<Run> runs_;
  Shards& shards_;
  Stream& stream_;
  Array<float> first_, second_;
  Index steps_ = 0;
};

// The factor that brings a gradient of this norm to at most `limit`; 1 when the limit is 0.
double clip_factor(double norm, double limit);

// The tensors that an ablation keeps at their initial values: gates at one, the clock without the token.
std::vector<bool> frozen_tensors(const ParameterLayout& layout, const ModelRecipe& recipe);

}  // namespace essh
