#include "essh/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/adamw.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/muon.h"
#include "essh/kernels/square_sum.h"
#include "essh/train/orthogonalise.h"

namespace essh {

Optimizer::Optimizer(std::string algorithm, const std::vector<const char*>& states, const ParameterLayout& layout,
                     const std::vector<Group>& groups, const std::vector<bool>& frozen, Shards& shards, Stream& stream)
    : stream_(stream), algorithm_(std::move(algorithm)), shards_(shards) {
  for (const char* name : states) {
    states_.push_back({name, Array<float>(stream.device(), shards.held(), "optimizer states")});
    clear(stream, states_.back().values.view());
  }
  for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    if (frozen[tensor]) continue;
    const Index begin = layout.offset(tensor), end = tensor_end(layout, tensor);
    if (!learning_.empty() && learning_.back().end == begin && learning_.back().group == groups[tensor])
      learning_.back().end = end;
    else
      learning_.push_back({begin, end, groups[tensor]});
  }
}

void Optimizer::add_squares(Vector<const float> gradient, double* sum) {
  for (const auto& bucket : shards_.buckets()) {
    for (std::size_t i = 0; i < learning_.size();) {
      Index begin = learning_[i].begin, end = learning_[i].end;
      while (++i < learning_.size() && learning_[i].begin == end) end = learning_[i].end;
      begin = std::max(begin, bucket.own_begin);
      end = std::min(end, bucket.own_end);
      if (begin < end) launch(stream_, SquareSum<float>{.x = gradient.middle(begin, end - begin), .sum = sum});
    }
  }
}

void Optimizer::step(Arena& arena, Vector<float> weights, Vector<BFloat16> rounded, Vector<const float> gradient,
                     double rate, double clip) {
  ++steps_;
  for (const auto& bucket : shards_.buckets()) {
    for (const auto& range : learning_) {
      const Index begin = std::max(range.begin, bucket.own_begin), end = std::min(range.end, bucket.own_end);
      if (begin >= end) continue;
      const auto cut = [&](auto whole) { return whole.empty() ? whole : whole.middle(begin, end - begin); };
      const Index held = bucket.held + begin - bucket.own_begin;
      update(arena, {held, cut(weights), cut(rounded), cut(gradient), range.group}, rate * range.group.rate, clip);
    }
    shards_.start_gather(weights, bucket);
  }
  shards_.wait();
}

namespace {

class AdamWOptimizer : public Optimizer {
 public:
  AdamWOptimizer(const OptimizerRecipe& recipe, const ParameterLayout& layout, DecayGroups groups,
                 const std::vector<bool>& frozen, Shards& shards, Stream& stream)
      : Optimizer(recipe.algorithm, {"first", "second"}, layout, groups_of(layout, recipe, groups), frozen, shards,
                  stream),
        recipe_(recipe) {}

 protected:
  Vector<float> state(std::size_t i, const Slice& slice) const {
    return states()[i].values.view(slice.held, slice.weights.size);
  }

  void update(Arena&, const Slice& slice, double rate, double clip) override {
    launch(stream_, AdamW<float>{.weight = slice.weights,
                                 .first = state(0, slice),
                                 .second = state(1, slice),
                                 .gradient = slice.gradient,
                                 .rounded = slice.rounded,
                                 .rate = rate,
                                 .beta1 = recipe_.beta1,
                                 .beta2 = recipe_.beta2,
                                 .eps = recipe_.eps,
                                 .decay = slice.group.decay,
                                 .clip = clip,
                                 .step = steps()});
  }

  OptimizerRecipe recipe_;

 private:
  static std::vector<Group> groups_of(const ParameterLayout& layout, const OptimizerRecipe& recipe,
                                      DecayGroups groups) {
    std::vector<Group> made;
    for (const auto& spec : layout.tensors()) {
      const bool decays = groups == DecayGroups::Refinement ? spec.rank >= 2 : spec.decays;
      made.push_back(
          {.rate = (spec.role == Role::Embedding ? recipe.embedding_rate : 1) * (spec.slope ? recipe.slope_rate : 1),
           .decay = decays ? recipe.weight_decay : 0,
           .matrix = recipe.algorithm == "muon" && spec.role == Role::Matrix && !spec.slope ? &spec : nullptr});
    }
    return made;
  }
};

// Muon for the matrices of the blocks, AdamW for everything else, slopes included. The momentum is the first state; the
// second stays zero for matrices.
template <class T>
class MuonOptimizer final : public AdamWOptimizer {
 public:
  MuonOptimizer(const Model<T>& model, const OptimizerRecipe& recipe, DecayGroups groups,
                const std::vector<bool>& frozen, Shards& shards, Stream& stream)
      : AdamWOptimizer(recipe, model.layout(), groups, frozen, shards, stream) {}

 private:
  // Steps of AdamW have about this root mean square, so both use the same rates and weight decay (Liu et al. 2025).
  static constexpr double kRms = 0.2;

  void update(Arena& arena, const Slice& slice, double rate, double clip) override {
    if (!slice.group.matrix) return AdamWOptimizer::update(arena, slice, rate, clip);
    const auto& spec = *slice.group.matrix;
    const Index size = spec.rows * spec.cols;
    ESSH_ASSERT(slice.weights.size >= size);
    const auto mark = arena.mark();
    const auto direction = arena.matrix<float>(spec.rows, spec.cols);
    const auto step = arena.matrix<T>(spec.rows, spec.cols);
    launch(stream_, MuonMomentum<float>{.momentum = state(0, slice).first(size),
                                        .gradient = slice.gradient.first(size),
                                        .direction = {direction.data, size},
                                        .beta = recipe_.momentum,
                                        .clip = clip});
    orthogonalise<T>(stream_, arena, direction, kRms * std::sqrt(static_cast<double>(std::max(spec.rows, spec.cols))),
                     step);
    launch(stream_, MuonUpdate<T>{.weight = slice.weights.first(size),
                                  .direction = {step.data, size},
                                  .rounded = slice.rounded.empty() ? slice.rounded : slice.rounded.first(size),
                                  .rate = rate,
                                  .decay = slice.group.decay});
    arena.release(mark);
  }
};

}  // namespace

template <class T>
std::unique_ptr<Optimizer> make_optimizer(const Model<T>& model, const OptimizerRecipe& recipe, DecayGroups groups,
                                          const std::vector<bool>& frozen, Shards& shards, Stream& stream) {
  if (recipe.algorithm == "muon")
    return std::make_unique<MuonOptimizer<T>>(model, recipe, groups, frozen, shards, stream);
  return std::make_unique<AdamWOptimizer>(recipe, model.layout(), groups, frozen, shards, stream);
}

template std::unique_ptr<Optimizer> make_optimizer(const Model<float>&, const OptimizerRecipe&, DecayGroups,
                                                   const std::vector<bool>&, Shards&, Stream&);
template std::unique_ptr<Optimizer> make_optimizer(const Model<BFloat16>&, const OptimizerRecipe&, DecayGroups,
                                                   const std::vector<bool>&, Shards&, Stream&);

double clip_factor(double norm, double limit) {
  return limit > 0 && norm > limit ? limit / norm : 1;
}

std::vector<bool> frozen_tensors(const ParameterLayout& layout, const ModelRecipe& recipe) {
  std::vector<bool> frozen;
  for (const auto& spec : layout.tensors()) {
    const auto has = [&](const char* part) { return spec.name.find(part) != std::string::npos; };
    frozen.push_back((recipe.clock == "fixed" && has("clock_proj.weight")) ||
                     (recipe.gates == "neutral" && (has("write_proj") || has("read_proj"))));
  }
  return frozen;
}

}  // namespace essh
