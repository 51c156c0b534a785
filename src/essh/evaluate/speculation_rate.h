#pragma once
#include <span>
#include <vector>

#include "essh/decode/speculation.h"

namespace essh {

// Decoding with a draft and without, from the same texts.
struct SpeculationBench {
  Index draft_tokens = 4;  // most of a round
  Index depth = 512;       // tokens read before
  Index steps = 200;       // tokens drawn after them
  int repetitions = 3;     // repetition i reads the i-th `depth` tokens of the text
  SamplingOptions sampling = {};
};

struct SpeculationRates {
  // Of each repetition, per token. Without a draft greedy tokens stay on the device.
  std::vector<double> plain_ms, draft_ms;
  Index tokens = 0;  // drawn with a draft, in all
  SpeculationCounts counts;
  std::size_t draft_state_bytes = 0;

  double tokens_per_pass() const;
  double plain_median_ms() const;
  double draft_median_ms() const;
};

// `text` has at least depth tokens and begins anew where it ends.
SpeculationRates measure_speculation(Engine& engine, const Tier& tier, const Tier& draft,
                                     std::span<const std::int32_t> text, const SpeculationBench& bench);

}  // namespace essh
