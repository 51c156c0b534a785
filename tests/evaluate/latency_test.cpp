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
  const auto result = measure_latencies(stored, {&tier, 1}, stream, {}, {.depth = 20, .warmup = 1, .steps = 9}).front();
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
    // 2 MiB for scratch memory of 20 tokens and partly filled pages.
    EXPECT_LE(result.resident_bytes, result.weight_bytes + result.session_bytes + (2u << 20));
  }
}

// Tiers take turns, so that a slow period of the machine affects all of them.
TEST(MeasureLatency, TakesTheTiersInTurnRoundAfterRound) {
  auto stream = cpu_stream(1);
  const auto family = small_family();
  const auto tiers = tiers_of(family.config());
  std::vector<std::string> order;
  const auto results =
      measure_latencies(family, tiers, stream, {}, {.depth = 5, .warmup = 1, .steps = 7},
                        [&](int round, const Tier& tier) { order.push_back(fmt::format("{} {}", round, tier.name)); });
  EXPECT_EQ(results.size(), tiers.size());
  EXPECT_EQ(order, (std::vector<std::string>{"0 T1", "0 T2", "1 T1", "1 T2", "2 T1", "2 T2"}));
}

TEST(RobustMinimum, IsTheMedianOfTheBestRound) {
  const std::vector<std::vector<double>> rounds = {{9, 8, 9}, {2, 3, 50}, {4, 0.1, 5}};
  EXPECT_EQ(robust_minimum(rounds), 3) << "neither a slow round nor one odd step decides";
}

}  // namespace
}  // namespace essh
