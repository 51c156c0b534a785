#include "essh/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/adamw.h"

namespace essh {

Optimizer::Optimizer(const ParameterLayout& layout, const OptimizerRecipe& recipe, DecayGroups groups,
                     std::vector<bool> frozen)
    : layout_(layout),
      recipe_(recipe),
      groups_(groups),
      frozen_(std::move(frozen)),
      first_(static_cast<std::size_t>(layout.size())),
      second_(static_cast<std::size_t>(layout.size())) {}

double Optimizer::norm(std::span<const float> gradient) const {
  double total = 0;
  for (std::size_t tensor = 0; tensor < layout_.tensors().size(); ++tensor) {
    if (frozen_[tensor]) continue;
    const auto& spec = layout_.tensors()[tensor];
    const float* values = gradient.data() + layout_.offset(tensor);
    // Short float sums inside long double ones: fast, and no square is lost.
    constexpr Index kPiece = 256;
    for (Index first = 0; first < spec.rows * spec.cols; first += kPiece) {
      float sum = 0;
      for (Index i = first; i < std::min(first + kPiece, spec.rows * spec.cols); ++i) sum += values[i] * values[i];
      total += static_cast<double>(sum);
    }
  }
  return std::sqrt(total);
}

void Optimizer::step(Stream& stream, std::span<float> weights, std::span<const float> gradient, double rate,
                     double clip) {
  ++steps_;
  for (std::size_t tensor = 0; tensor < layout_.tensors().size(); ++tensor) {
    if (frozen_[tensor]) continue;
    const auto& spec = layout_.tensors()[tensor];
    const Index offset = layout_.offset(tensor), size = spec.rows * spec.cols;
    const bool decays =
        groups_ == DecayGroups::Refinement ? spec.rank >= 2 : spec.role == Role::Matrix || spec.role == Role::ZeroLag;
    launch(stream, AdamW<float>{.weight = {weights.data() + offset, size},
                                .first = {first_.data() + offset, size},
                                .second = {second_.data() + offset, size},
                                .gradient = {gradient.data() + offset, size},
                                .rate = rate,
                                .beta1 = recipe_.beta1,
                                .beta2 = recipe_.beta2,
                                .eps = recipe_.eps,
                                .decay = decays ? recipe_.weight_decay : 0,
                                .clip = clip,
                                .step = steps_});
  }
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
