#include "essh/serve/latency_control.h"

#include <gtest/gtest.h>

namespace essh::serve {
namespace {

constexpr LatencyOptions kOptions{
    .limit = 0.02, .smoothing = 0.5, .calm_share = 0.5, .reduce_seconds = 1, .grow_seconds = 5};

TEST(LatencyControl, StaysFullBelowTheLimit) {
  LatencyControl control(kOptions, 4);
  for (int i = 0; i < 100; ++i) control.observe(0.1 * i, 0.019, 0);
  EXPECT_EQ(control.decide(10).level, 0u);
  EXPECT_EQ(control.decide(10).reason, "");
}

TEST(LatencyControl, ReducesOneLevelAtATimeAndNoFurtherThanTheLast) {
  LatencyControl control(kOptions, 3);
  control.observe(0, 0.03, 0);
  EXPECT_EQ(control.decide(0).level, 1u);
  EXPECT_EQ(control.decide(0).reason, "30.0 ms between tokens, the limit is 20 ms");
  control.observe(0.99, 0.03, 0);
  EXPECT_EQ(control.decide(0.99).level, 1u);
  control.observe(1, 0.03, 0);
  EXPECT_EQ(control.decide(1).level, 2u);
  for (int i = 2; i < 9; ++i) control.observe(i, 0.03, 0);
  EXPECT_EQ(control.decide(9).level, 2u);
}

TEST(LatencyControl, OneSlowStepAmongFastOnesChangesNothing) {
  LatencyControl control({.limit = 0.02, .smoothing = 0.2}, 3);
  control.observe(0, 0.01, 0);
  control.observe(0.1, 0.05, 0);  // average 18 ms
  EXPECT_EQ(control.decide(0.1).level, 0u);
}

TEST(LatencyControl, TextsThatWaitReduceToo) {
  LatencyControl control(kOptions, 3);
  control.observe(0, 0.001, 7);
  EXPECT_EQ(control.decide(0).level, 1u);
  EXPECT_EQ(control.decide(0).reason, "7 texts wait");
}

// Latencies between the calm share and the limit keep the level, so tiers do not alternate.
TEST(LatencyControl, GrowsOnlyAfterACalmTime) {
  LatencyControl control(kOptions, 3);
  for (const double now : {0.0, 1.0}) control.observe(now, 0.03, 0);
  ASSERT_EQ(control.decide(1).level, 2u);
  for (int i = 2; i < 20; ++i) control.observe(i, 0.015, 0);
  EXPECT_EQ(control.decide(20).level, 2u);
  for (int i = 20; i < 25; ++i) control.observe(i, 0.001, 0);  // the average falls to 8 ms at 20
  EXPECT_EQ(control.decide(24.9).level, 2u);
  control.observe(25, 0.001, 0);
  EXPECT_EQ(control.decide(25).level, 1u);
  control.observe(29.9, 0.001, 0);
  EXPECT_EQ(control.decide(29.9).level, 1u);
  EXPECT_EQ(control.decide(30).level, 0u);
}

TEST(LatencyControl, TimeWithoutStepsIsCalm) {
  LatencyControl control(kOptions, 4);
  for (const double now : {0.0, 1.0, 2.0}) control.observe(now, 0.5, 0);
  EXPECT_EQ(control.decide(6.9).level, 3u);
  EXPECT_EQ(control.decide(7).level, 2u);
  EXPECT_EQ(control.decide(100).level, 0u);
  // The average restarts after a time without steps.
  control.observe(101, 0.015, 0);
  EXPECT_EQ(control.decide(101).level, 0u);
}

TEST(LatencyControl, TheSameMeasurementsGiveTheSameDecisions) {
  LatencyControl one(kOptions, 9), other(kOptions, 9);
  for (int i = 0; i < 1000; ++i) {
    const double now = 0.05 * i, between = 0.001 * ((i * 7919) % 40);
    one.observe(now, between, i % 97 == 0);
    other.observe(now, between, i % 97 == 0);
    ASSERT_EQ(one.decide(now).level, other.decide(now).level);
  }
}

}  // namespace
}  // namespace essh::serve
