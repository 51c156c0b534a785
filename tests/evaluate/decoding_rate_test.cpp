#include "essh/evaluate/decoding_rate.h"

#include <gtest/gtest.h>

#include "essh/model/initialise.h"

namespace essh {
namespace {

StoredModel tiny_model() {
  const auto config = preset("tiny");
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 1);
  return StoredModel(std::move(model));
}

constexpr DecodingBench kBench{.batch = 3, .depth = 5, .warmup = 0, .steps = 1, .repetitions = 2};

// A batch of one tier moves the same bytes, mixed or not.
TEST(DecodingRate, CountsTheBytesOfAStep) {
  auto stream = cpu_stream(1);
  const auto model = tiny_model();
  const auto tiers = tiers_of(model.config());
  for (const auto& tier : {tiers.front(), tiers.back()}) {
    const auto alone = measure_decoding(model, tier, stream, {}, kBench),
               mixed = measure_mixed_decoding(model, {tier}, stream, {}, kBench);
    EXPECT_EQ(mixed.moved_bytes, alone.moved_bytes) << tier.name;
    EXPECT_EQ(mixed.step_ms.size(), 2u);
  }
}

// Sequences of a smaller tier have less state to read.
TEST(DecodingRate, MixedTiersMoveTheirOwnState) {
  auto stream = cpu_stream(1);
  const auto model = tiny_model();
  const auto tiers = tiers_of(model.config());
  const auto full = measure_mixed_decoding(model, {tiers.back()}, stream, {}, kBench),
             both = measure_mixed_decoding(model, {tiers.back(), tiers.front()}, stream, {}, kBench);
  EXPECT_EQ(both.weights.bytes, full.weights.bytes) << "the largest tier's weights are read";
  EXPECT_LT(both.moved_bytes, full.moved_bytes);
}

// A step reads the rows before it as far as the window goes (tiny has one layer of 256), also where nothing was read
// before the first step.
TEST(DecodingRate, CountsTheRowsThatAStepSees) {
  auto stream = cpu_stream(1);
  const auto model = tiny_model();
  const auto tiers = tiers_of(model.config());
  const auto bytes = [&](Index depth, bool mixed) {
    auto bench = kBench;
    bench.depth = depth;
    return mixed ? measure_mixed_decoding(model, {tiers.back()}, stream, {}, bench).moved_bytes
                 : measure_decoding(model, tiers.back(), stream, {}, bench).moved_bytes;
  };
  for (const bool mixed : {false, true}) {
    const double row = 2.0 * static_cast<double>(model.config().hidden_size) * sizeof(float);
    EXPECT_EQ(bytes(10, mixed) - bytes(0, mixed), 10 * row * static_cast<double>(kBench.batch));
    EXPECT_EQ(bytes(256, mixed), bytes(300, mixed));
  }
}

TEST(DecodingRate, ReadsMemory) {
  auto stream = cpu_stream(2);
  const double rate = measure_read_bandwidth(stream);
  EXPECT_GT(rate, 1e8);
  EXPECT_LT(rate, 1e14);
}

}  // namespace
}  // namespace essh
