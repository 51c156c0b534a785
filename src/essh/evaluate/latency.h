#pragma once
#include <cstdint>

#include "essh/decode/session.h"

namespace essh {

struct LatencyOptions {
  Index depth = 512;  // tokens in the state before the first step, and the length of a timed prompt
  int warmup = 16;    // steps before the first timed one
  int steps = 96;     // timed
  int prompts = 3;    // timed, after one that is not
};

// What running one tier takes here, batch 1, tokens drawn at random. Times are medians, so that a moment of other work
// on the machine does not count.
struct TierLatency {
  double decode_ms = 0;              // one more token and its logits
  double decode_ms_low = 0;          // first decile of the timed steps
  double decode_ms_high = 0;         // ninth
  double prefill_rate = 0;           // prompt tokens per second
  std::uint64_t weight_bytes = 0;    // as held in memory
  std::uint64_t session_bytes = 0;   // recurrent state and window caches as held in memory
  std::uint64_t resident_bytes = 0;  // by how much the process grew; 0 where the system does not say
};

// Cuts the tier out of the model, as an export would, and runs it alone.
TierLatency measure_latency(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine,
                            const LatencyOptions& options);

}  // namespace essh
