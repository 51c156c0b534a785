#pragma once
#include <map>
#include <string>
#include <vector>

#include "essh/decode/engine.h"
#include "essh/train/recipe.h"

namespace essh {

// Seed of initial weights and of prompts.
inline constexpr std::uint64_t kThroughputSeed = 1;

// Rates of repeated measurements, in tokens per second.
struct Rates {
  std::vector<double> samples;

  double mean() const;
  double deviation() const;
};

struct TrainingBench {
  Index micro_batch = 8, accumulation = 16, context = 2048;
  Index loss_rows = 8192;
  // Optimizer steps. Warm-up steps, which allocate memory and autotune, are not timed.
  int warmup = 1, steps = 3;
  // Capacities and objective of the micro-batches, sampled as after the warm-up of the recipe.
  ElasticRecipe elastic = {.sampling = "dense"};
  OptimizerRecipe optimizer = {};
  // Steps of shared refinement instead of pretraining.
  bool refinement = false;
  std::uint64_t seed = 1;
  // Also profile a few more micro-batches by GPU kernel.
  bool profile = false;
};

struct TrainingRates {
  Rates rates;
  double flops_per_token = 0;  // of the matrix products
  std::size_t state_bytes = 0, activation_bytes = 0;
  double loss = 0;                        // of the last step; shows that the model learns
  std::map<double, Index> micro_batches;  // of the timed steps, by budget
  Index teacher_passes = 0;               // of the timed steps
  std::vector<ProfiledScope::Line> profile;
};

// Whole training steps on random tokens: forward, loss, backward, gradient norm and optimizer.
TrainingRates measure_training(const ModelConfig& config, Stream& stream, Precision precision,
                               const TrainingBench& bench);

struct PrefillBench {
  Index tokens = 2048;
  Index depth = 0;  // tokens before them, not timed
  // Tokens in one pass.
  Index piece = 8192;
  // Logits of every position, a few at a time and discarded, or of the last position only.
  bool all_logits = true;
  int warmup = 3, runs = 5;
};
struct PrefillRates {
  Rates rates;
  std::size_t state_bytes = 0;  // after the prompt
};

// Rates of reading a prompt into recurrent state and window, batch 1.
PrefillRates measure_prefill(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine,
                             const PrefillBench& bench);

}  // namespace essh
