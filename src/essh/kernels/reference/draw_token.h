#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "essh/kernels/draw_token.h"

namespace essh::reference {

// The candidates of a row that the filters keep, best first, with their weights: everything sorted.
inline std::vector<DrawCandidate> draw_candidates(std::span<const float> logits, const DrawOptions& options,
                                                  std::span<const LogitChange> changes) {
  std::vector<float> values(logits.begin(), logits.end());
  for (const auto& change : changes) {
    float& value = values[static_cast<std::size_t>(change.token)];
    value = changed_logit(value, change, options.repetition_penalty);
  }
  std::vector<LogitKey> keys;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto key = draw_key(values[i], static_cast<std::int32_t>(i))) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end(), std::greater{});
  if (keys.empty()) return {};
  if (options.temperature == 0) return {{keys[0], 1}};

  if (options.top_k > 0) keys.resize(std::min(keys.size(), static_cast<std::size_t>(options.top_k)));
  const auto distance = [&](LogitKey key) {
    return draw_distance(value_of_key(keys[0]), value_of_key(key), 1 / options.temperature);
  };
  std::vector<DrawCandidate> kept;
  std::uint64_t total = 0, sum = 0;
  for (const auto key : keys) {
    kept.push_back({key, draw_weight(std::exp(-distance(key)), weight_bits(std::ssize(logits)))});
    total += kept.back().weight;
  }
  if (options.top_p < 1) {
    const auto target = top_p_target(options.top_p, total);
    std::size_t count = 0;
    while (sum < target) sum += kept[count++].weight;
    kept.resize(count);
  }
  while (distance(kept.back().key) > options.furthest) kept.pop_back();
  return kept;
}

// DrawToken of one row without log-probabilities.
inline std::int32_t draw_token(std::span<const float> logits, const DrawOptions& options,
                               std::span<const LogitChange> changes) {
  const auto kept = draw_candidates(logits, options, changes);
  std::uint64_t mass = 0, sum = 0;
  for (const auto& candidate : kept) mass += candidate.weight;
  const auto target = draw_target(random_bits(options.seed, kDrawStream, options.position), mass);
  for (const auto& candidate : kept) {
    sum += candidate.weight;
    if (sum >= target) return token_of_key(candidate.key);
  }
  return -1;
}

// log of the sum of exp of all logits but NaN, in double.
inline double log_sum_exp(std::span<const float> logits) {
  std::vector<double> numbers;
  for (const float logit : logits) {
    if (!std::isnan(logit)) numbers.push_back(static_cast<double>(logit));
  }
  const double largest = *std::max_element(numbers.begin(), numbers.end());
  double sum = 0;
  for (const double number : numbers) sum += std::exp(number - largest);
  return largest + std::log(sum);
}

}  // namespace essh::reference
