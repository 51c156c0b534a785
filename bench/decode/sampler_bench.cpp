#include <benchmark/benchmark.h>

#include "essh/decode/sampler.h"

namespace essh::bench {
namespace {

// Llama-3.1's vocabulary. Logits of deviation 1 give a flat distribution, the hardest case; 4 is like a language model.
void draw(benchmark::State& state, SamplingOptions options) {
  Rng rng(3);
  std::vector<float> logits(128'256);
  for (auto& logit : logits) logit = static_cast<float>(static_cast<double>(state.range(0)) * rng.normal());
  Sampler sampler(options);
  for (auto _ : state) benchmark::DoNotOptimize(sampler.draw(logits));
}
BENCHMARK_CAPTURE(draw, all, SamplingOptions{.temperature = 1})->ArgName("spread")->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(draw, top_p, SamplingOptions{.temperature = 1, .top_p = 0.9})->ArgName("spread")->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(draw, top_k, SamplingOptions{.temperature = 1, .top_k = 40})->ArgName("spread")->Arg(1)->Arg(4);
BENCHMARK_CAPTURE(draw, greedy, SamplingOptions{})->ArgName("spread")->Arg(1);

}  // namespace
}  // namespace essh::bench
