#include "essh/kernels/draw_token.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace essh {
namespace {

bool better(const DrawCandidate& a, const DrawCandidate& b) {
  return a.key > b.key;
}

// The candidates of a row with their weights, in buckets by distance.
class Row {
 public:
  Row(std::span<DrawCandidate> candidates, LogitKey best, double temperature, int bits)
      : candidates_(candidates), best_(value_of_key(best)), inverse_temperature_(1 / temperature) {
    for (auto& candidate : candidates_) {
      const double far = distance(candidate);
      candidate.weight = draw_weight(std::exp(-far), bits);
      sums_[static_cast<std::size_t>(draw_bucket(far))] += candidate.weight;
    }
  }

  std::uint64_t mass() const { return std::accumulate(sums_.begin(), sums_.end(), std::uint64_t{0}); }
  // Of the candidates with at least this key, at no larger distance.
  std::uint64_t mass(LogitKey cut, double furthest) const {
    std::uint64_t sum = 0;
    for (const auto& candidate : candidates_)
      sum += candidate.key >= cut && distance(candidate) <= furthest ? candidate.weight : 0;
    return sum;
  }

  // The candidate at which the running sum of weights, best first, reaches `target`, which is not above their sum.
  // Linear in time: one bucket, then halves of it.
  struct Place {
    LogitKey key;
    std::uint64_t sum;  // with its own weight
  };
  Place select(std::uint64_t target) const {
    constexpr std::ptrdiff_t kSorted = 64;
    std::size_t bucket = 0;
    std::uint64_t before = 0;
    for (; before + sums_[bucket] < target; ++bucket) before += sums_[bucket];
    const LogitKey low = lowest_key(static_cast<int>(bucket)), high = lowest_key(static_cast<int>(bucket) - 1);
    std::vector<DrawCandidate> inside;
    for (const auto& candidate : candidates_) {
      if (candidate.key >= low && candidate.key < high) inside.push_back(candidate);
    }
    auto begin = inside.begin(), end = inside.end();
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
    return {begin->key, before};
  }

  double distance(const DrawCandidate& c) const {
    return draw_distance(best_, value_of_key(c.key), inverse_temperature_);
  }

 private:
  // Where the keys of this bucket and better ones begin.
  LogitKey lowest_key(int bucket) const {
    constexpr LogitKey kUnit = LogitKey{1} << 32;
    LogitKey low = score_key(-std::numeric_limits<float>::infinity(), 0) / kUnit,
             high = score_key(best_, 0) / kUnit + 1;
    while (low < high) {
      const LogitKey middle = (low + high) / 2;
      const double far = draw_distance(best_, value_of_key(middle * kUnit), inverse_temperature_);
      if (draw_bucket(far) <= bucket)
        high = middle;
      else
        low = middle + 1;
    }
    return low * kUnit;
  }

  std::span<DrawCandidate> candidates_;
  float best_;
  double inverse_temperature_;
  std::array<std::uint64_t, kDrawBuckets> sums_{};
};

// The values of a row that can be drawn, as many as top_k keeps, in `room`; and the best one.
struct Values {
  std::span<DrawCandidate> candidates;
  LogitKey best = 0;
};
Values values_of(std::span<const float> logits, const DrawOptions& options, std::span<const LogitChange> changes,
                 std::span<DrawCandidate> room) {
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
  if (options.temperature == 0 && count > 0) {
    room[0] = {best, 1};
    count = 1;
  } else if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < count) {
    std::nth_element(room.begin(), room.begin() + options.top_k, room.begin() + static_cast<std::ptrdiff_t>(count),
                     better);
    count = static_cast<std::size_t>(options.top_k);
  }
  return {room.first(count), best};
}

// The candidate that top_p keeps last, and the weight of all that top_p and the largest distance keep.
Row::Place filter(const Row& row, const DrawOptions& options) {
  Row::Place last{0, row.mass()};
  if (options.top_p < 1) last = row.select(top_p_target(options.top_p, last.sum));
  if (options.furthest < std::numeric_limits<double>::infinity()) last.sum = row.mass(last.key, options.furthest);
  return last;
}

}  // namespace

std::span<DrawCandidate> draw_candidates(std::span<const float> logits, const DrawOptions& options,
                                         std::span<const LogitChange> changes, std::span<DrawCandidate> room) {
  const auto [candidates, best] = values_of(logits, options, changes, room);
  if (candidates.empty() || options.temperature == 0) return candidates;
  const Row row(candidates, best, options.temperature, weight_bits(std::ssize(logits)));
  const auto last = filter(row, options);
  const auto dropped = std::ranges::remove_if(candidates, [&](const DrawCandidate& candidate) {
    return candidate.key < last.key || row.distance(candidate) > options.furthest;
  });
  return candidates.first(candidates.size() - dropped.size());
}

DrawnToken draw_token(std::span<const float> logits, const DrawOptions& options, std::span<const LogitChange> changes,
                      std::span<DrawCandidate> room) {
  const auto [candidates, best] = values_of(logits, options, changes, room);
  if (candidates.empty()) return {};
  if (options.temperature == 0) return {.token = token_of_key(best)};
  const Row row(candidates, best, options.temperature, weight_bits(std::ssize(logits)));
  // The candidates that are kept are the first: those behind them do not matter.
  const auto random = random_bits(options.seed, kDrawStream, options.position);
  return {.token = token_of_key(row.select(draw_target(random, filter(row, options).sum)).key)};
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
