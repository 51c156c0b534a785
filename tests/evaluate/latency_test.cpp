#include "essh/evaluate/latency.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "essh/model/cost.h"
#include "essh/model/initialise.h"
#include "tests/evaluate/small_engine.h"

namespace essh {
namespace {

TEST(MeasureLatency, CountsMemoryAndOrdersItsQuantiles) {
  auto config = preset("tiny");
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 3);
  const StoredModel stored(std::move(model));
  auto stream = cpu_stream(1);
  const auto tier = find_tier(config, "T4");
  const auto result = measure_latency(stored, tier, stream, {}, {.depth = 20, .warmup = 1, .steps = 9, .prompts = 1});
  EXPECT_GT(result.decode_ms_low, 0);
  EXPECT_LE(result.decode_ms_low, result.decode_ms);
  EXPECT_LE(result.decode_ms, result.decode_ms_high);
  EXPECT_GT(result.prefill_rate, 0);
  const auto weights = 4 * static_cast<std::uint64_t>(cost_of(config, tier.capacity).parameters);
  EXPECT_GE(result.weight_bytes, weights);
  EXPECT_LE(result.weight_bytes, weights + weights / 50);
  EXPECT_GT(result.session_bytes, 0u);
  if (std::filesystem::exists("/proc/self/statm")) {
    EXPECT_GE(result.resident_bytes, weights * 9 / 10);
    EXPECT_LE(result.resident_bytes, 3 * (result.weight_bytes + result.session_bytes) + (64u << 20));
  }
}

}  // namespace
}  // namespace essh
