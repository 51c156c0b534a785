#include "essh/kernels/draw_token.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace essh {
namespace {

bool better(const DrawCandidate& a, const DrawCandidate& b) {
  return a.key > b.key;
}

// Distances of a row's candidates.
struct Distance {
  float best;
  double inverse_temperature;
  double operator()(const DrawCandidate& c) const {
    return draw_distance(best, value_of_key(c.key), inverse_temperature);
  }
};

// The place, counted from the best, at which the running sum of weights reaches `target`, which is not above their sum.
// Rearranges so that [0, place] are the best. Linear in time: buckets, then halves of one bucket.
std::size_t select(std::span<DrawCandidate> candidates, const Distance& distance, std::uint64_t target) {
  constexpr std::ptrdiff_t kSorted = 64;
  std::array<std::uint64_t, kDrawBuckets> sums{};
  const auto bucket_of = [&](const DrawCandidate& c) { return static_cast<std::size_t>(draw_bucket(distance(c))); };
  for (const auto& candidate : candidates) sums[bucket_of(candidate)] += candidate.weight;
  std::size_t bucket = 0;
  std::uint64_t before = 0;
  for (; before + sums[bucket] < target; ++bucket) before += sums[bucket];

  auto begin = std::partition(candidates.begin(), candidates.end(),
                              [&](const DrawCandidate& c) { return bucket_of(c) < bucket; });
  auto end = std::partition(begin, candidates.end(), [&](const DrawCandidate& c) { return bucket_of(c) == bucket; });
  while (end - begin > kSorted) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    auto sum = before;
    for (auto c = begin; c != middle; ++c) sum += c->weight;
    if (sum >= target) {
      end = middle;
    } else {
      before = sum;
      begin = middle;
    }
  }
  std::sort(begin, end, better);
  while ((before += begin->weight) < target) ++begin;
  return static_cast<std::size_t>(begin - candidates.begin());
}

std::uint64_t sum_of(std::span<const DrawCandidate> candidates) {
  std::uint64_t sum = 0;
  for (const auto& candidate : candidates) sum += candidate.weight;
  return sum;
}

Distance distance_from(std::span<const DrawCandidate> candidates, const DrawOptions& options) {
  LogitKey best = 0;
  for (const auto& candidate : candidates) best = std::max(best, candidate.key);
  return {value_of_key(best), 1 / options.temperature};
}

}  // namespace

std::span<DrawCandidate> draw_candidates(std::span<const float> logits, const DrawOptions& options,
                                         std::span<const LogitChange> changes, std::span<DrawCandidate> room) {
  ESSH_ASSERT(room.size() >= logits.size());
  std::size_t count = 0;
  auto change = changes.begin();
  LogitKey best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    float value = logits[i];
    const auto token = static_cast<std::int32_t>(i);
    while (change != changes.end() && change->token < token) ++change;  // not in the vocabulary
    if (change != changes.end() && change->token == token)
      value = changed_logit(value, *change++, options.repetition_penalty);
    const auto key = draw_key(value, token);
    best = std::max(best, key);
    room[count] = {key, 0};
    count += key != 0;
  }
  if (count == 0) return {};
  if (options.temperature == 0) {
    room[0] = {best, 1};
    return room.first(1);
  }

  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < count) {
    std::nth_element(room.begin(), room.begin() + options.top_k, room.begin() + static_cast<std::ptrdiff_t>(count),
                     better);
    count = static_cast<std::size_t>(options.top_k);
  }
  auto kept = room.first(count);
  const Distance distance{value_of_key(best), 1 / options.temperature};
  const int bits = weight_bits(std::ssize(logits));
  for (auto& candidate : kept) candidate.weight = draw_weight(std::exp(-distance(candidate)), bits);
  if (options.top_p < 1) kept = kept.first(1 + select(kept, distance, top_p_target(options.top_p, sum_of(kept))));
  if (options.furthest < std::numeric_limits<double>::infinity()) {
    const auto end = std::partition(kept.begin(), kept.end(),
                                    [&](const DrawCandidate& c) { return distance(c) <= options.furthest; });
    kept = kept.first(static_cast<std::size_t>(end - kept.begin()));
  }
  return kept;
}

DrawnToken draw_token(std::span<const float> logits, const DrawOptions& options, std::span<const LogitChange> changes,
                      std::span<DrawCandidate> room) {
  const auto kept = draw_candidates(logits, options, changes, room);
  if (kept.empty()) return {};
  if (kept.size() == 1) return {.token = token_of_key(kept[0].key)};
  const auto distance = distance_from(kept, options);
  const auto random = random_bits(options.seed, kDrawStream, options.position);
  return {.token = token_of_key(kept[select(kept, distance, draw_target(random, sum_of(kept)))].key)};
}

DrawnToken score_token(std::span<const float> logits, std::int32_t token, std::span<DrawnToken> top) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) largest = logit > largest ? logit : largest;
  std::uint64_t sum = 0;
  const int bits = weight_bits(std::ssize(logits));
  for (const float logit : logits) {
    if (logit > -std::numeric_limits<float>::infinity())
      sum += draw_weight(std::exp(-draw_distance(largest, logit, 1)), bits);
  }
  const double log_sum =
      static_cast<double>(largest) + std::log(static_cast<double>(sum) / static_cast<double>(std::uint64_t{1} << bits));
  const auto scored = [&](std::int32_t id) -> DrawnToken {
    return {id, clipped_logprob(static_cast<double>(logits[static_cast<std::size_t>(id)]) - log_sum)};
  };
  // Few are wanted of many: an insertion into a short sorted list.
  std::vector<LogitKey> best;
  for (std::size_t i = 0; i < logits.size() && !top.empty(); ++i) {
    const auto key = score_key(logits[i], static_cast<std::int32_t>(i));
    if (key == 0 || (best.size() == top.size() && key < best.back())) continue;
    if (best.size() == top.size()) best.pop_back();
    best.insert(std::upper_bound(best.begin(), best.end(), key, std::greater{}), key);
  }
  for (std::size_t i = 0; i < top.size(); ++i) top[i] = i < best.size() ? scored(token_of_key(best[i])) : DrawnToken{};
  return scored(token);
}

void run(cpu::Stream& stream, const DrawToken& op) {
  stream.pool().each(op.options.size, [&](Index i, int thread) {
    const auto& options = op.options[i];
    const std::span logits(op.logits.row(options.row), static_cast<std::size_t>(op.logits.cols));
    const std::span changes(op.changes.data + options.first_change, static_cast<std::size_t>(options.changes));
    cpu::Scratch scratch(stream, thread);
    auto& drawn = op.drawn[i];
    drawn = draw_token(logits, options, changes, {scratch.take<DrawCandidate>(op.logits.cols), logits.size()});
    if (options.alternatives < 0 || drawn.token < 0) return;
    drawn = score_token(logits, drawn.token, {op.top.row(i), static_cast<std::size_t>(options.alternatives)});
  });
}

}  // namespace essh
