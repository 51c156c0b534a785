#pragma once
#include <memory>
#include <string>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"
#include "essh/train/recipe.h"
#include "essh/train/shards.h"

namespace essh {

// Which tensors weight decay touches: in pretraining matrices and zero-lag tables; in refinement everything of two
// dimensions.
enum class DecayGroups { Pretraining, Refinement };

// An algorithm that updates this rank's shares of the weights on a device. Frozen tensors keep their values and states.
class Optimizer {
 public:
  // What the algorithm remembers of every weight. Checkpoints, resuming on other ranks and the ordering of units move
  // all states alike, by name.
  struct State {
    std::string name;
    Array<float> values;  // an array of shares, zero before the first step
  };

  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  // As checkpoints name it.
  const std::string& algorithm() const { return algorithm_; }
  const std::vector<State>& states() const { return states_; }

  // sum += squares of the gradient over the tensors that learn, in this rank's shares.
  void add_squares(Vector<const float> gradient, double* sum);
  // One step at a learning rate, the gradient multiplied by `clip`; the other ranks' shares of the weights are taken
  // from them. A collective. `rounded` (may be empty) follows this rank's shares of the weights.
  void step(Vector<float> weights, Vector<BFloat16> rounded, Vector<const float> gradient, double rate, double clip);

  Index steps() const { return steps_; }
  void set_steps(Index steps) { steps_ = steps; }

 protected:
  // A range of the flat array, and of the states, that this rank owns: tensors that are treated alike, whole or cut as
  // Shards says, and the gaps between them, which hold zeros.
  struct Range {
    Index begin, end;
    Index held = 0;  // of `begin` in a state
    bool decays = false;
  };
  struct Operands {
    Vector<float> weights;
    Vector<BFloat16> rounded;
    Vector<const float> gradient;
    double rate, clip;
  };

  // `shards` and `stream` outlive it.
  Optimizer(std::string algorithm, const std::vector<const char*>& states, const ParameterLayout& layout,
            DecayGroups groups, const std::vector<bool>& frozen, Shards& shards, Stream& stream);

  // Updates weights, their rounded copies and states of one range; the operands are the whole flat arrays.
  virtual void update(const Range& range, const Operands& operands) = 0;

  Stream& stream_;

 private:
  std::string algorithm_;
  std::vector<State> states_;
  std::vector<Range> learning_;  // of all ranks; neighbours differ in `decays`
  Shards& shards_;
  Index steps_ = 0;
};

// The algorithm of the recipe, AdamW. `shards` and `stream` outlive it.
std::unique_ptr<Optimizer> make_optimizer(const ParameterLayout& layout, const OptimizerRecipe& recipe,
                                          DecayGroups groups, const std::vector<bool>& frozen, Shards& shards,
                                          Stream& stream);

// The factor that brings a gradient of this norm to at most `limit`; 1 when the limit is 0.
double clip_factor(double norm, double limit);

// The tensors that an ablation keeps at their initial values: gates at one, the clock without the token.
std::vector<bool> frozen_tensors(const ParameterLayout& layout, const ModelRecipe& recipe);

}  // namespace essh
