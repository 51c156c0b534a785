#include "essh/decode/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "essh/base/error.h"

namespace essh {

// Ties go to the smaller token, so that every machine orders alike.
bool Sampler::better(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

namespace {

// Weights are in [0, 1]: buckets of a sixteenth of an octave from 1 down, all below 2^-64 in the last.
constexpr std::size_t kBuckets = 64 * 16 + 2;
std::size_t bucket_of(double weight) {
  constexpr std::uint64_t kTop = std::bit_cast<std::uint64_t>(1.0) >> 48;
  return std::min<std::uint64_t>(kTop - (std::bit_cast<std::uint64_t>(weight) >> 48), kBuckets - 1);
}

}  // namespace

// The place, counted from the best, at which the running sum of the weights reaches what is asked for; the last one
// when it never does. Rearranges so that [0, place] are the best. Linear in time: buckets, then halves of one bucket.
template <class Reached>
std::size_t Sampler::select(std::span<Candidate> candidates, const Reached& reached) {
  constexpr std::ptrdiff_t kSorted = 64;
  std::array<double, kBuckets> sums{};
  for (const auto& candidate : candidates) sums[bucket_of(candidate.weight)] += candidate.weight;
  std::size_t bucket = 0, lowest = kBuckets - 1;
  while (lowest > 0 && sums[lowest] == 0) --lowest;
  double before = 0;
  for (; bucket < lowest && !reached(before + sums[bucket]); ++bucket) before += sums[bucket];

  auto begin = std::partition(candidates.begin(), candidates.end(),
                              [&](const Candidate& c) { return bucket_of(c.weight) < bucket; });
  auto end = std::partition(begin, candidates.end(), [&](const Candidate& c) { return bucket_of(c.weight) == bucket; });
  while (end - begin > kSorted) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    double sum = before;
    for (auto c = begin; c != middle; ++c) sum += c->weight;
    if (reached(sum)) {
      end = middle;
    } else {
      before = sum;
      begin = middle;
    }
  }
  std::sort(begin, end, better);
  for (; begin + 1 < end; ++begin) {
    before += begin->weight;
    if (reached(before)) break;
  }
  return static_cast<std::size_t>(begin - candidates.begin());
}

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

void Sampler::filter(std::span<const float> logits, std::span<const std::int32_t> ahead) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i]) && logits[i] != -INFINITY)
      candidates_.push_back({static_cast<std::int32_t>(i), static_cast<double>(logits[i])});
  }
  if (candidates_.empty()) fail(ErrorKind::BadFile, "the model gives no finite logit; run `essh verify` on it");
  if (options_.repetition_penalty != 1) {
    std::vector<std::int32_t> seen = recent_;
    seen.insert(seen.end(), ahead.begin(), ahead.end());
    const auto window = std::min(seen.size(), static_cast<std::size_t>(options_.repetition_window));
    seen.erase(seen.begin(), seen.end() - static_cast<std::ptrdiff_t>(window));
    std::sort(seen.begin(), seen.end());
    for (auto& candidate : candidates_) {
      if (!std::binary_search(seen.begin(), seen.end(), candidate.token)) continue;
      candidate.weight = candidate.weight > 0 ? candidate.weight / options_.repetition_penalty
                                              : candidate.weight * options_.repetition_penalty;
    }
  }
  if (options_.temperature == 0) {
    candidates_ = {{std::min_element(candidates_.begin(), candidates_.end(), better)->token, 1}};
    return;
  }
  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), better);
    candidates_.resize(static_cast<std::size_t>(options_.top_k));
  }
  double best = -INFINITY, total = 0;
  for (const auto& candidate : candidates_) best = std::max(best, candidate.weight);
  for (auto& candidate : candidates_)
    total += candidate.weight = std::exp((candidate.weight - best) / options_.temperature);
  if (options_.top_p < 1) {
    const double share = options_.top_p * total;
    candidates_.resize(1 + select(candidates_, [&](double sum) { return sum >= share; }));
  }
  if (options_.min_p > 0) std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options_.min_p; });
}

std::vector<TokenShare> Sampler::distribution(std::span<const float> logits, std::span<const std::int32_t> ahead) {
  filter(logits, ahead);
  double mass = 0;
  for (const auto& candidate : candidates_) mass += candidate.weight;
  std::vector<TokenShare> shares;
  shares.reserve(candidates_.size());
  for (const auto& candidate : candidates_) shares.push_back({candidate.token, candidate.weight / mass});
  // Without filters the candidates are still in order.
  if (!std::ranges::is_sorted(shares, {}, &TokenShare::token)) std::ranges::sort(shares, {}, &TokenShare::token);
  return shares;
}

std::int32_t Sampler::draw(std::span<const float> logits) {
  filter(logits, {});
  if (options_.temperature == 0) return candidates_.front().token;
  double mass = 0;
  for (const auto& candidate : candidates_) mass += candidate.weight;
  const double point = rng_.uniform() * mass;
  return candidates_[select(candidates_, [&](double sum) { return sum > point; })].token;
}

}  // namespace essh
