#include "essh/train/optimizer.h"

#include <algorithm>

#include "essh/kernels/adamw.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/square_sum.h"

namespace essh {

Optimizer::Optimizer(std::string algorithm, const std::vector<const char*>& states, const ParameterLayout& layout,
                     DecayGroups groups, const std::vector<bool>& frozen, Shards& shards, Stream& stream)
    : stream_(stream), algorithm_(std::move(algorithm)), shards_(shards) {
  for (const char* name : states) {
    states_.push_back({name, Array<float>(stream.device(), shards.held(), "optimizer states")});
    clear(stream, states_.back().values.view());
  }
  for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    if (frozen[tensor]) continue;
    const auto& spec = layout.tensors()[tensor];
    const bool decays = groups == DecayGroups::Refinement ? spec.rank >= 2 : spec.decays;
    const Index begin = layout.offset(tensor), end = tensor_end(layout, tensor);
    if (!learning_.empty() && learning_.back().end == begin && learning_.back().decays == decays)
      learning_.back().end = end;
    else
      learning_.push_back({begin, end, decays});
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

void Optimizer::step(Vector<float> weights, Vector<BFloat16> rounded, Vector<const float> gradient, double rate,
                     double clip) {
  ++steps_;
  for (const auto& bucket : shards_.buckets()) {
    for (const auto& range : learning_) {
      const Index begin = std::max(range.begin, bucket.own_begin), end = std::min(range.end, bucket.own_end);
      const auto cut = [&](auto whole) { return whole.empty() ? whole : whole.middle(begin, end - begin); };
      const Index held = bucket.held + begin - bucket.own_begin;
      if (begin < end) update({begin, held, cut(weights), cut(rounded), cut(gradient), range.decays}, rate, clip);
    }
    shards_.start_gather(weights, bucket);
  }
  shards_.wait();
}

namespace {

struct AdamWSettings {
  double beta1, beta2, eps, decay;
};

class AdamWOptimizer final : public Optimizer {
 public:
  AdamWOptimizer(const AdamWSettings& settings, const ParameterLayout& layout, DecayGroups groups,
                 const std::vector<bool>& frozen, Shards& shards, Stream& stream)
      : Optimizer("adamw", {"first", "second"}, layout, groups, frozen, shards, stream), settings_(settings) {}

 private:
  void update(const Slice& slice, double rate, double clip) override {
    const auto state = [&](std::size_t i) { return states()[i].values.view(slice.held, slice.weights.size); };
    launch(stream_, AdamW<float>{.weight = slice.weights,
                                 .first = state(0),
                                 .second = state(1),
                                 .gradient = slice.gradient,
                                 .rounded = slice.rounded,
                                 .rate = rate,
                                 .beta1 = settings_.beta1,
                                 .beta2 = settings_.beta2,
                                 .eps = settings_.eps,
                                 .decay = slice.decays ? settings_.decay : 0,
                                 .clip = clip,
                                 .step = steps()});
  }

  AdamWSettings settings_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const ParameterLayout& layout, const OptimizerRecipe& recipe,
                                          DecayGroups groups, const std::vector<bool>& frozen, Shards& shards,
                                          Stream& stream) {
  const AdamWSettings settings{recipe.beta1, recipe.beta2, recipe.eps, recipe.weight_decay};
  return std::make_unique<AdamWOptimizer>(settings, layout, groups, frozen, shards, stream);
}

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
