#pragma once
#include <limits>
#include <span>

#include "essh/base/rng.h"
#include "essh/kernels/largest_logit.h"

namespace essh {

// A token whose logit changes before a draw: value = logit + bias - penalty and then, if `repeated`, value / r where it
// is above 0 and value * r elsewhere, r being the repetition penalty of the row.
struct LogitChange {
  std::int32_t token = 0;
  float bias = 0, penalty = 0;
  std::int32_t repeated = 0;
};

// How the token of a row is drawn.
struct DrawOptions {
  Index row = 0;                                              // of the logits
  double temperature = 0;                                     // 0: the most likely token
  std::int64_t top_k = 0;                                     // 0: all
  double top_p = 1;                                           // 1: all
  double furthest = std::numeric_limits<double>::infinity();  // -log(min_p)
  double repetition_penalty = 1;
  std::uint64_t seed = 0, position = 0;  // the random number is random_bits(seed, kDrawStream, position)
  Index first_change = 0, changes = 0;   // its stretch of DrawToken::changes, tokens rising
  std::int32_t alternatives = -1;        // most likely tokens to score; -1: no log-probability is wanted
};
inline constexpr std::uint64_t kDrawStream = 0x5a3b1e;

struct DrawnToken {
  std::int32_t token = -1;  // -1: no value is a number above -infinity; also in places of the top without a token
  float logprob = 0;
};
// Log-probabilities are not below it: JSON has no infinity.
inline constexpr float kLeastLogprob = -9999;

// Draws a token from each chosen row of logits.
//
// Values are the logits after changes, in float32. Candidates are the values that are numbers above -infinity, best
// first, equal ones by rising token. With best the first value and V the vocabulary:
//   distance = (best - value) / temperature
//   weight   = round(2^s exp(-distance)),  s = weight_bits(V)
// Filters keep the first of the candidates, each of those that the one before it kept:
//   top_k      k candidates
//   top_p      as few as have top_p of the weight of all
//   furthest   those at no larger distance
// The token is the first at which the running sum of weights exceeds u * (their sum), u a random number in [0, 1) of 53
// bits. Weights are integers, so that no sum depends on its order and every device draws the same token. Tokens less
// likely than 2^-(s+1) times the best one are never drawn: 2^-46 for a vocabulary of 128 thousand.
//
// Log-probabilities are those of the logits before changes at temperature 1:
//   logprob = logit - (largest + log(sum of weights / 2^s))
struct DrawToken {
  Matrix<const float> logits;  // rows x vocabulary, 2^24 columns at most
  Vector<const DrawOptions> options;
  Vector<const LogitChange> changes;
  Vector<DrawnToken> drawn;  // (=) for each of the options
  Matrix<DrawnToken> top;    // (=) for each of the options, its alternatives; may be empty if nobody wants any
};

void run(cpu::Stream&, const DrawToken&);
void run(cuda::Stream&, const DrawToken&);

// What is drawn from one row on the host. `options.row` and `first_change` are not used: `changes` are those of the
// row. `room` is scratch of as many elements as logits.
struct DrawCandidate {
  LogitKey key;
  std::uint64_t weight;
};
// What the filters keep, in any order, in `room`. At temperature 0 the best one, of weight 1; none if there is none.
std::span<DrawCandidate> draw_candidates(std::span<const float> logits, const DrawOptions& options,
                                         std::span<const LogitChange> changes, std::span<DrawCandidate> room);
DrawnToken draw_token(std::span<const float> logits, const DrawOptions& options, std::span<const LogitChange> changes,
                      std::span<DrawCandidate> room);
// The log-probability of a token, and of the most likely ones, best first.
DrawnToken score_token(std::span<const float> logits, std::int32_t token, std::span<DrawnToken> top);

// The definitions that all devices share.

constexpr float changed_logit(float logit, const LogitChange& change, double repetition_penalty) {
  const float value = logit + change.bias - change.penalty;
  if (change.repeated == 0) return value;
  const double wide = static_cast<double>(value);
  return static_cast<float>(value > 0 ? wide / repetition_penalty : wide * repetition_penalty);
}

// The key of a value that can be drawn, larger for better ones; 0 for others. Adding 0 makes -0 equal to 0.
constexpr LogitKey draw_key(float value, std::int32_t token) {
  return value > -std::numeric_limits<float>::infinity() ? logit_key(value + 0.0f, token) : 0;
}
// The same with -infinity as a value.
constexpr LogitKey score_key(float logit, std::int32_t token) {
  return logit_key(logit + 0.0f, token);
}
constexpr float value_of_key(LogitKey key) {
  const auto ordered = static_cast<std::uint32_t>(key >> 32);
  return std::bit_cast<float>(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

// s: sums of V weights stay below 2^62.
constexpr int weight_bits(Index vocabulary) {
  int bits = 62;  // without std::bit_width, which nvcc takes for 0 on the device
  for (; vocabulary > 0; vocabulary /= 2) --bits;
  return bits;
}
constexpr double draw_distance(float best, float value, double inverse_temperature) {
  return value < best ? (static_cast<double>(best) - static_cast<double>(value)) * inverse_temperature : 0;
}
// Of exp(-distance).
constexpr std::uint64_t draw_weight(double exponential, int bits) {
  return static_cast<std::uint64_t>(exponential * static_cast<double>(std::uint64_t{1} << bits) + 0.5);
}

// Distances in buckets of a thirty-second of an octave of weight, rising; all that have no weight are in the last.
inline constexpr int kDrawBuckets = 2048;
constexpr int draw_bucket(double distance) {
  constexpr double kPerUnit = 32 / std::numbers::ln2;
  return distance * kPerUnit < kDrawBuckets - 1 ? static_cast<int>(distance * kPerUnit) : kDrawBuckets - 1;
}

// The running sum at which top_p has been reached: at least 1, so that something stays.
constexpr std::uint64_t top_p_target(double top_p, std::uint64_t total) {
  const double share = top_p * static_cast<double>(total);
  auto target = static_cast<std::uint64_t>(share);
  if (static_cast<double>(target) < share) ++target;
  return target < 1 ? 1 : target > total ? total : target;
}
// The running sum at which the token is drawn: 1 + floor(u * mass), u the upper 53 of the bits.
constexpr std::uint64_t draw_target(std::uint64_t random, std::uint64_t mass) {
  const std::uint64_t u = random >> 11 << 11;
  const std::uint64_t low = (u & 0xffffffffu) * (mass & 0xffffffffu);
  const std::uint64_t first = (u >> 32) * (mass & 0xffffffffu) + (low >> 32);
  const std::uint64_t second = (u & 0xffffffffu) * (mass >> 32) + (first & 0xffffffffu);
  return 1 + (u >> 32) * (mass >> 32) + (first >> 32) + (second >> 32);
}

constexpr float clipped_logprob(double logprob) {
  return logprob >= static_cast<double>(kLeastLogprob) ? static_cast<float>(logprob) : kLeastLogprob;  // NaN too
}

}  // namespace essh
