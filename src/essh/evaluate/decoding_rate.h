#pragma once
#include <vector>

#include "essh/decode/engine.h"

namespace essh {

// Decoding as the paper measures it: `batch` sequences of `depth` tokens, then one token each per step. Every token is
// the argmax of the previous step and stays on the device.
struct DecodingBench {
  Index batch = 1;
  Index depth = 2048;  // 0: the timed tokens are the first
  int warmup = 50, steps = 200;
  int repetitions = 3;
};

struct DecodingRates {
  std::vector<double> step_ms;  // by repetition: mean over its steps
  StepWeights weights;          // as a step reads them
  std::size_t state_bytes = 0;  // of one sequence
  // Bytes that a timed step moves on average: the weights, and the reads and writes of every sequence's state.
  double moved_bytes = 0;

  double median_ms() const;
};

DecodingRates measure_decoding(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine,
                               const DecodingBench& bench);

// The same with sequences of several tiers of one parent, round-robin; tiers share a pass if that is faster.
DecodingRates measure_mixed_decoding(const StoredModel& model, const std::vector<Tier>& tiers, Stream& stream,
                                     EngineOptions engine, const DecodingBench& bench);

// Read bandwidth of the device in bytes per second, over a large array; best of a few passes. 0 if too
// little memory is available.
double measure_read_bandwidth(Stream& stream);

}  // namespace essh
