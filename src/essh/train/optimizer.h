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
  // Tensors that are treated alike, as far as this rank owns them (whole, or cut as Shards says), and the gaps between
  // them, which hold zeros.
  struct Slice {
    Index begin, held;  // of the first element, in the flat array and in a state
    Vector<float> weights;
    Vector<BFloat16> rounded;  // (=) may be empty
    Vector<const float> gradient;
    bool decays;
  };

  // `shards` and `stream` outlive it.
  Optimizer(std::string algorithm, const std::vector<const char*>& states, const ParameterLayout& layout,
            DecayGroups groups, const std::vector<bool>& frozen, Shards& shards, Stream& stream);

  // One step of a slice and of its states.
  virtual void update(const Slice& slice, double rate, double clip) = 0;

  Stream& stream_;

 private:
  struct Range {
    Index begin, end;
    bool decays;
  };

  std::string algorithm_;
  std::vector<State> states_;
  std::vector<Range> learning_;  // of all ranks; what touches differs in `decays`
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
