#pragma once
#include <memory>
#include <string>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/model.h"
#include "essh/train/recipe.h"
#include "essh/train/shards.h"

namespace essh {

// Tensors under weight decay: matrices and zero-lag tables in pretraining, all two-dimensional tensors in refinement.
enum class DecayGroups { Pretraining, Refinement };

// Updates this rank's shards of the weights on a device. Frozen tensors keep their values and states.
class Optimizer {
 public:
  // Per-weight state of the algorithm, by name, for checkpoints, resharding and the ordering of units.
  struct State {
    std::string name;
    Array<float> values;  // a sharded array, zero before the first step
  };

  virtual ~Optimizer() = default;

  // Name in checkpoints.
  const std::string& algorithm() const { return algorithm_; }
  const std::vector<State>& states() const { return states_; }

  // sum += squared gradient over the trained tensors of this rank's shards.
  void add_squares(Vector<const float> gradient, double* sum);
  // One step at a learning rate with the gradient multiplied by `clip`; then gathers the other ranks' shards. A
  // collective. `rounded` (may be empty) gets rounded copies of this rank's shards. Scratch is taken from the arena.
  void step(Arena& arena, Vector<float> weights, Vector<BFloat16> rounded, Vector<const float> gradient, double rate,
            double clip);

  Index steps() const { return steps_; }
  void set_steps(Index steps) { steps_ = steps; }

 protected:
  // Consecutive tensors with the same settings.
  struct Group {
    double rate = 1;                      // factor on the learning rate
    double decay = 0;                     // weight decay
    const ModelTensor* matrix = nullptr;  // one whole matrix; null if the elements are updated independently

    bool operator==(const Group&) const = default;
  };
  // This rank's shards of a group, including the zero padding between tensors.
  struct Slice {
    Index held;  // offset of the first element in a state
    Vector<float> weights;
    Vector<BFloat16> rounded;  // (=) may be empty
    Vector<const float> gradient;
    Group group;
  };

  // `groups` has one per tensor of the layout. `layout`, `shards` and `stream` must outlive the optimizer.
  Optimizer(std::string algorithm, const std::vector<const char*>& states, const ParameterLayout& layout,
            const std::vector<Group>& groups, const std::vector<bool>& frozen, Shards& shards, Stream& stream);

  // One step of a slice and its states.
  virtual void update(Arena& arena, const Slice& slice, double rate, double clip) = 0;

  Stream& stream_;

 private:
  struct Range {
    Index begin, end;
    Group group;
  };

  std::string algorithm_;
  std::vector<State> states_;
  std::vector<Range> learning_;  // of all ranks
  Shards& shards_;
  Index steps_ = 0;
};

// The optimizer of the recipe. Muon makes its products in T. `model`, `shards` and `stream` must outlive it.
template <class T>
std::unique_ptr<Optimizer> make_optimizer(const Model<T>& model, const OptimizerRecipe& recipe, DecayGroups groups,
                                          const std::vector<bool>& frozen, Shards& shards, Stream& stream);

// The factor that clips a gradient of this norm to `limit`; 1 if the limit is 0.
double clip_factor(double norm, double limit);

// The tensors that an ablation keeps at their initial values: neutral gates, input-independent clock.
std::vector<bool> frozen_tensors(const ParameterLayout& layout, const ModelRecipe& recipe);

}  // namespace essh
