#include "essh/train/optimizer.h"

#include <algorithm>

#include "essh/kernels/adamw.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/square_sum.h"

namespace essh {

Optimizer::Optimizer(const ParameterLayout& layout, const OptimizerRecipe& recipe, DecayGroups groups,
                     const std::vector<bool>& frozen, Shards& shards, Stream& stream)
    : recipe_(recipe),
      shards_(shards),
      stream_(stream),
      first_(stream.device(), shards.held(), "first moments"),
      second_(stream.device(), shards.held(), "second moments") {
  clear(stream, first());
  clear(stream, second());
  for (std::size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    if (frozen[tensor]) continue;
    const auto& spec = layout.tensors()[tensor];
    const bool decays =
        groups == DecayGroups::Refinement ? spec.rank >= 2 : spec.role == Role::Matrix || spec.role == Role::ZeroLag;
    const Index begin = layout.offset(tensor),
                end = tensor + 1 < layout.tensors().size() ? layout.offset(tensor + 1) : layout.size();
    if (!runs_.empty() && runs_.back().end == begin && runs_.back().decays == decays)
      runs_.back().end = end;
    else
      runs_.push_back({begin, end, decays});
  }
}

void Optimizer::add_squares(Vector<const float> gradient, double* sum) {
  for (const auto& bucket : shards_.buckets()) {
    for (std::size_t i = 0; i < runs_.size();) {
      Index begin = runs_[i].begin, end = runs_[i].end;
      while (++i < runs_.size() && runs_[i].begin == end) end = runs_[i].end;
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
    for (const auto& run : runs_) {
      const Index begin = std::max(run.begin, bucket.own_begin), end = std::min(run.end, bucket.own_end);
      if (begin >= end) continue;
      const auto part = [&](auto whole) { return whole.empty() ? whole : whole.middle(begin, end - begin); };
      const auto held = [&](auto parts) { return parts.middle(bucket.held + begin - bucket.own_begin, end - begin); };
      launch(stream_, AdamW<float>{.weight = part(weights),
                                   .first = held(first()),
                                   .second = held(second()),
                                   .gradient = part(gradient),
                                   .rounded = part(rounded),
                                   .rate = rate,
                                   .beta1 = recipe_.beta1,
                                   .beta2 = recipe_.beta2,
                                   .eps = recipe_.eps,
                                   .decay = run.decays ? recipe_.weight_decay : 0,
                                   .clip = clip,
                                   .step = steps_});
    }
    shards_.start_gather(weights, bucket);
  }
  shards_.wait();
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
