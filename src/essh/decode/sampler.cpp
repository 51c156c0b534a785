#include "essh/decode/sampler.h"

#include <algorithm>
#include <cmath>

#include "essh/base/error.h"

namespace essh {

void Sampler::see(std::int32_t token) {
  // Kept without a penalty too: a later part of the text may have one.
  if (options_.repetition_window == 0) return;
  if (recent_.size() == static_cast<std::size_t>(options_.repetition_window)) recent_.erase(recent_.begin());
  recent_.push_back(token);
}

void Sampler::resume(const SamplerState& state) {
  recent_.clear();
  for (const auto token : state.recent) see(token);
  rng_.seek(state.seed == options_.seed ? state.position : 0);
}

std::int32_t Sampler::draw(std::span<const float> logits) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i]) && logits[i] != -INFINITY)
      candidates_.push_back({static_cast<std::int32_t>(i), static_cast<double>(logits[i])});
  }
  if (candidates_.empty()) fail(ErrorKind::BadFile, "the model gives no finite logit; run `essh verify` on it");
  if (options_.repetition_penalty != 1 && !recent_.empty()) {
    std::vector<std::int32_t> seen = recent_;
    std::sort(seen.begin(), seen.end());
    for (auto& candidate : candidates_) {
      if (!std::binary_search(seen.begin(), seen.end(), candidate.token)) continue;
      candidate.weight = candidate.weight > 0 ? candidate.weight / options_.repetition_penalty
                                              : candidate.weight * options_.repetition_penalty;
    }
  }
  // Ties go to the smaller token, so that every machine sorts alike.
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  if (options_.temperature == 0) return std::min_element(candidates_.begin(), candidates_.end(), better)->token;

  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), better);
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
  const double best = candidates_.front().weight;
  double total = 0;
  for (auto& candidate : candidates_)
    total += candidate.weight = std::exp((candidate.weight - best) / options_.temperature);
  std::size_t kept = candidates_.size();
  if (options_.top_p < 1) {
    double sum = 0;
    for (kept = 0; kept < candidates_.size() && (kept == 0 || sum < options_.top_p * total); ++kept)
      sum += candidates_[kept].weight;
  }
  while (kept > 1 && candidates_[kept - 1].weight < options_.min_p) --kept;
  double mass = 0;
  for (std::size_t i = 0; i < kept; ++i) mass += candidates_[i].weight;
  double point = rng_.uniform() * mass;
  for (std::size_t i = 0; i < kept; ++i) {
    point -= candidates_[i].weight;
    if (point < 0) return candidates_[i].token;
  }
  return candidates_[kept - 1].token;
}

}  // namespace essh
