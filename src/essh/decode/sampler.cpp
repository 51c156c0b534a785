#include "essh/decode/sampler.h"

#include <algorithm>
#include <cmath>

#include "essh/base/error.h"

namespace essh {
namespace {

constexpr const char* kNoFiniteLogit = "the model gives no finite logit; run `essh verify` on it";

}  // namespace

void Sampler::see(std::int32_t token) {
  // Kept without a penalty too: a later part of the text may have one.
  const auto window = options_.repetition_window;
  if (window == 0) return;
  // A whole window at a time: dropping one token moves all others.
  if (std::ssize(recent_) == 2 * window) recent_.erase(recent_.begin(), recent_.begin() + window);
  recent_.push_back(token);
}

std::span<const std::int32_t> Sampler::recent() const {
  const auto window = static_cast<std::size_t>(options_.repetition_window);
  return std::span(recent_).last(std::min(recent_.size(), window));
}

void Sampler::resume(const SamplerState& state) {
  recent_.clear();
  for (const auto token : state.recent) see(token);
  rng_.seek(state.seed == options_.seed ? state.position : 0);
}

DrawOptions Sampler::plan(std::span<const LogitChange> changes, std::vector<LogitChange>& list) const {
  return plan(changes, recent(), list);
}
DrawOptions Sampler::plan(std::span<const LogitChange> changes, std::span<const std::int32_t> seen,
                          std::vector<LogitChange>& list) const {
  const auto first = std::ssize(list);
  std::vector<std::int32_t> repeated;
  if (options_.repetition_penalty != 1) repeated.assign(seen.begin(), seen.end());
  std::ranges::sort(repeated);
  repeated.erase(std::ranges::unique(repeated).begin(), repeated.end());
  auto change = changes.begin();
  for (const auto token : repeated) {
    while (change != changes.end() && change->token < token) list.push_back(*change++);
    list.push_back(change != changes.end() && change->token == token ? *change++ : LogitChange{.token = token});
    list.back().repeated = 1;
  }
  list.insert(list.end(), change, changes.end());
  return {.temperature = options_.temperature,
          .top_k = options_.top_k,
          .top_p = options_.top_p,
          .furthest = -std::log(options_.min_p),
          .repetition_penalty = options_.repetition_penalty,
          .seed = options_.seed,
          .position = rng_.position(),
          .first_change = first,
          .changes = std::ssize(list) - first};
}

void Sampler::drew(std::int32_t token) {
  advance();
  see(token);
}

std::vector<TokenShare> Sampler::distribution(std::span<const float> logits, std::span<const std::int32_t> ahead) {
  std::vector<std::int32_t> seen(recent().begin(), recent().end());
  seen.insert(seen.end(), ahead.begin(), ahead.end());
  const auto window = std::min(seen.size(), static_cast<std::size_t>(options_.repetition_window));
  seen.erase(seen.begin(), seen.end() - static_cast<std::ptrdiff_t>(window));
  changes_.clear();
  const auto options = plan({}, seen, changes_);
  if (room_.size() < logits.size()) room_.resize(logits.size());
  const auto candidates = draw_candidates(logits, options, changes_, room_);
  if (candidates.empty()) fail(ErrorKind::BadFile, kNoFiniteLogit);
  std::uint64_t mass = 0;
  for (const auto& candidate : candidates) mass += candidate.weight;
  std::vector<TokenShare> shares;
  shares.reserve(candidates.size());
  for (const auto& candidate : candidates) {
    if (candidate.weight > 0)
      shares.push_back(
          {token_of_key(candidate.key), static_cast<double>(candidate.weight) / static_cast<double>(mass)});
  }
  // Without filters the candidates are still in order.
  if (!std::ranges::is_sorted(shares, {}, &TokenShare::token)) std::ranges::sort(shares, {}, &TokenShare::token);
  return shares;
}

std::int32_t Sampler::draw(std::span<const float> logits, std::span<const LogitChange> changes) {
  changes_.clear();
  const auto options = plan(changes, changes_);
  if (room_.size() < logits.size()) room_.resize(logits.size());
  const auto token = draw_token(logits, options, changes_, room_).token;
  if (token < 0) fail(ErrorKind::BadFile, kNoFiniteLogit);
  advance();
  return token;
}

}  // namespace essh
