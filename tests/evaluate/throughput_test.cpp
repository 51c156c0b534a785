#include "essh/evaluate/throughput.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/model/initialise.h"
#include "essh/train/capacity_sampler.h"

namespace essh {
namespace {

ModelConfig small_family() {
  auto c = preset("tiny");
  c.vocab_size = 64;
  c.hidden_size = 32;
  c.intermediate_size = 128;
  c.num_hidden_layers = 2;
  c.attention_layers = {1};
  c.sliding_attention = {.num_attention_heads = 1, .head_dim = 32};
  c.spectral_channels = 8;
  c.channel_width = 4;
  c.elastic = two_rate(8, 128, deployment_budgets());
  return c;
}

TEST(Rates, MeanAndDeviationOfTheSamples) {
  const Rates rates{{2, 4, 4, 4, 5, 5, 7, 9}};
  EXPECT_DOUBLE_EQ(rates.mean(), 5);
  EXPECT_DOUBLE_EQ(rates.deviation(), std::sqrt(32.0 / 7));
  EXPECT_EQ(Rates{{3}}.deviation(), 0);
}

TEST(MeasureTraining, CountsProductsAndMemory) {
  const auto config = small_family();
  auto stream = cpu_stream(2);
  const auto result =
      measure_training(config, stream, Precision::Float32,
                       {.micro_batch = 2, .accumulation = 2, .context = 32, .loss_rows = 64, .warmup = 1, .steps = 3});
  ASSERT_EQ(result.rates.samples.size(), 3u);
  for (const double rate : result.rates.samples) EXPECT_GT(rate, 0);
  double products = 0;
  const ParameterLayout layout(config);
  for (const auto& spec : layout.tensors()) {
    if (spec.is_matrix()) products += 6.0 * static_cast<double>(spec.rows * spec.cols);
  }
  EXPECT_EQ(result.flops_per_token, products);
  EXPECT_EQ(result.state_bytes, 16 * static_cast<std::size_t>(layout.size())) << "weights, gradients and two moments";
  // At least the residuals of two blocks.
  EXPECT_GE(result.activation_bytes, static_cast<std::size_t>(2 * 2 * 32 * config.hidden_size) * sizeof(float));
}

TEST(MeasurePrefill, ReadsThePromptAsOftenAsAskedFor) {
  auto stream = cpu_stream(2);
  const auto config = small_family();
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 3);
  const StoredModel family(std::move(model));
  const auto tier = find_tier(config, "T1");
  for (const bool all : {true, false}) {
    for (const Index piece : {7, 64}) {
      const auto found = measure_prefill(family, tier, stream, {},
                                         {.tokens = 40, .piece = piece, .all_logits = all, .warmup = 0, .runs = 1});
      ASSERT_EQ(found.rates.samples.size(), 1u) << "one run is one run, however short";
      EXPECT_GT(found.rates.mean(), 0);
    }
  }
}

// A prompt of 40 tokens after 1000 leaves the state of one of 1040, and every run begins after the 1000.
TEST(MeasurePrefill, GoesOnFromItsDepth) {
  auto stream = cpu_stream(2);
  auto config = small_family();
  config.layer_types = {"spectral", "full_attention"};
  config.full_attention = {.num_attention_heads = 1, .head_dim = 32};
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 3);
  const StoredModel family(std::move(model));
  const auto tier = find_tier(config, "T1");
  const auto state_bytes = [&](Index depth, Index tokens, int runs) {
    const auto found = measure_prefill(family, tier, stream, {}, {.tokens = tokens, .depth = depth, .runs = runs});
    EXPECT_GE(std::ssize(found.rates.samples), runs);
    return found.state_bytes;
  };
  const auto after = state_bytes(1000, 40, 5);
  EXPECT_EQ(after, state_bytes(0, 1040, 1));
  EXPECT_GT(after, state_bytes(0, 40, 1));
}

// The bench runs the micro-batches that the sampler draws for the same steps; the teacher runs only for reduced
// capacities.
TEST(MeasureTraining, RunsTheSamplersOwnMixture) {
  const auto config = small_family();
  auto stream = cpu_stream(1);
  TrainingBench bench{.micro_batch = 1, .accumulation = 5, .context = 16, .warmup = 2, .steps = 8};
  for (const double kl : {0.5, 0.0}) {
    bench.elastic = {.warmup_tokens = 0, .kl = kl};
    const auto rates = measure_training(config, stream, Precision::Float32, bench);
    const CapacitySampler sampler(bench.elastic, config, bench.seed, 1000);
    std::map<double, Index> drawn;
    Index reduced = 0;
    for (Index step = 2; step < 10; ++step) {
      for (const double budget : sampler.draw(step, 0, 5)) {
        ++drawn[budget];
        reduced += budget < 1;
      }
    }
    ASSERT_GT(reduced, 0);
    EXPECT_EQ(rates.micro_batches, drawn);
    EXPECT_EQ(rates.teacher_passes, kl > 0 ? reduced : 0);
    EXPECT_EQ(rates.rates.samples.size(), 8u);
    EXPECT_NEAR(rates.loss, std::log(64.0), 0.1) << "random tokens cannot be predicted";
  }
  bench.elastic = {.sampling = "dense"};
  const auto dense = measure_training(config, stream, Precision::Float32, bench);
  EXPECT_EQ(dense.micro_batches, (std::map<double, Index>{{1.0, 40}}));
  EXPECT_EQ(dense.teacher_passes, 0);
}

}  // namespace
}  // namespace essh
