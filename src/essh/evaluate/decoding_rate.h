#pragma once
#include <vector>

#include "essh/decode/engine.h"

namespace essh {

// Decoding as the paper measures it: `batch` sequences of `depth` tokens each, then single tokens, each the most likely
// one of the step before, which stays on the device.
struct DecodingBench {
  Index batch = 1;
  Index depth = 2048;
  int warmup = 50, steps = 200;
  int repetitions = 3;
};

struct DecodingRates {
  std::vector<double> step_ms;  // of each repetition, the mean of its steps
  std::size_t weight_bytes = 0;
  std::size_t state_bytes = 0;  // of one sequence
  // Bytes that a step has to move: weights and what it reads and writes of every sequence's state.
  double moved_bytes = 0;

  double median_ms() const;
  double deviation_ms() const;
};

DecodingRates measure_decoding(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine,
                               const DecodingBench& bench);

// The same for sequences of several tiers in turn, of one loaded parent, which share a pass where that pays.
DecodingRates measure_mixed_decoding(const StoredModel& model, const std::vector<Tier>& tiers, Stream& stream,
                                     EngineOptions engine, const DecodingBench& bench);

// Bytes per second that the device reads from a large array; best of a few passes. 0 on the CPU.
double measure_read_rate(Stream& stream);

}  // namespace essh
