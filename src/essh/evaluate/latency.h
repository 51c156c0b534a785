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
  int steps = 96;     // timed, in all rounds together; at least one in each
  int rounds = 3;     // over all tiers; each times one prompt, after one that is not
};

// Of the tokens that are fed.
inline constexpr std::uint64_t kLatencySeed = 1;

// What running one tier takes here, batch 1, tokens drawn at random. Other work on the machine only adds time: the best
// round counts, and in it the median step.
struct TierLatency {
  double decode_ms = 0;              // one more token and its logits
  double decode_ms_low = 0;          // first decile of the timed steps of all rounds
  double decode_ms_high = 0;         // ninth
  double prefill_rate = 0;           // prompt tokens per second
  std::uint64_t weight_bytes = 0;    // as held in memory
  std::uint64_t session_bytes = 0;   // recurrent state and window caches as held in memory
  std::uint64_t resident_bytes = 0;  // by how much the process grew; 0 where the system does not say
};

// Cuts each tier out of the model, as an export would, and runs it alone. Round after round over all tiers: a machine
// that slows down for a while slows all of them down, and no single one. `progress` is told each round of a tier
// before it begins.
using LatencyProgress = std::function<void(int round, const Tier& tier)>;
std::vector<TierLatency> measure_latencies(const StoredModel& model, std::span<const Tier> tiers, Stream& stream,
                                           EngineOptions engine, const LatencyOptions& options,
                                           const LatencyProgress& progress = {});

// The smallest of the medians of the rounds, none of them empty.
double robust_minimum(std::span<const std::vector<double>> rounds);

}  // namespace essh
