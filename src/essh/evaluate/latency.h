#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "essh/decode/session.h"

namespace essh {

struct LatencyOptions {
  Index depth = 512;  // tokens in the state before the first step, and the length of a timed prompt
  int warmup = 8;     // steps of each round before the first timed one
  int steps = 96;     // timed steps over all rounds; at least one per round
  int rounds = 3;     // over all tiers; each times one prompt after an untimed one
};

// Seed of the input tokens.
inline constexpr std::uint64_t kLatencySeed = 1;

// Time and memory of one tier at batch 1, with random tokens. Other work on the machine only adds time, so the best
// round counts, by its median step.
struct TierLatency {
  double decode_ms = 0;              // one more token and its logits
  double decode_ms_low = 0;          // first decile over all timed steps
  double decode_ms_high = 0;         // ninth decile
  double prefill_rate = 0;           // prompt tokens per second
  std::uint64_t weight_bytes = 0;    // as held in memory
  std::uint64_t session_bytes = 0;   // recurrent state and window caches as held in memory
  std::uint64_t resident_bytes = 0;  // growth of the process; 0: unknown
};

// Cuts each tier out of the model, as an export would, and measures it alone. Tiers alternate round by round, so that a
// slow phase of the machine affects all of them. `progress` is called before each round of a tier.
using LatencyProgress = std::function<void(int round, const Tier& tier)>;
std::vector<TierLatency> measure_latencies(const StoredModel& model, std::span<const Tier> tiers, Stream& stream,
                                           EngineOptions engine, const LatencyOptions& options,
                                           const LatencyProgress& progress = {});

// The smallest of the medians of the rounds, none of them empty.
double robust_minimum(std::span<const std::vector<double>> rounds);

}  // namespace essh
