#include "essh/plot/ticks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace essh::plot {
namespace {

using Ticks = std::vector<double>;
using Labels = std::vector<std::string>;

void expect_near(const Ticks& actual, const Ticks& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << ::testing::PrintToString(actual);
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-12 * std::abs(expected[i]));
}

TEST(Ticks, LinearStepsAreRound) {
  expect_near(linear_ticks(0, 1, 5), {0, 0.2, 0.4, 0.6, 0.8, 1});
  expect_near(linear_ticks(-3, 42, 5), {0, 10, 20, 30, 40});
  expect_near(linear_ticks(15.92, 17.31, 6), {16, 16.5, 17});
  expect_near(linear_ticks(-1e-7, 1e-7, 4), {-1e-7, -5e-8, 0, 5e-8, 1e-7});
  EXPECT_FALSE(std::signbit(linear_ticks(-1, 1, 4)[2])) << "zero has no sign";
}

TEST(Ticks, LinearRefusesNothing) {
  expect_near(linear_ticks(3, 3, 5), {3});
  EXPECT_EQ(linear_ticks(0, std::numeric_limits<double>::infinity(), 5).size(), 1u);
  EXPECT_LE(linear_ticks(1e15, 1e15 + 1, 5).size(), 100u);
}

TEST(Ticks, LogarithmicAreDecades) {
  expect_near(log_ticks(0.5, 2000, 6), {1, 10, 100, 1000});
  expect_near(log_ticks(1e-18, 1, 6), {1e-18, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1});
}

TEST(Ticks, LogarithmicOverFewDecades) {
  expect_near(log_ticks(3, 60, 6), {5, 10, 20, 50});
  expect_near(log_ticks(2.1, 4.9, 3), {3, 4});
}

TEST(Ticks, LabelsTellTicksApart) {
  EXPECT_EQ(tick_labels({16, 16.5, 17}, Scale::Linear), (Labels{"16", "16.5", "17"}));
  EXPECT_EQ(tick_labels({-0.5, 0, 0.5}, Scale::Linear), (Labels{"−0.5", "0", "0.5"}));
  EXPECT_EQ(tick_labels({1000.5, 1000.75, 1001}, Scale::Linear), (Labels{"1000.5", "1000.75", "1001"}));
  EXPECT_EQ(tick_labels({0, 100000, 200000}, Scale::Linear), (Labels{"0", "100000", "200000"}));
  EXPECT_EQ(tick_labels({0, 5e9, 1e10}, Scale::Linear), (Labels{"0", "5·10⁹", "10¹⁰"}));
}

TEST(Ticks, LogarithmicLabels) {
  EXPECT_EQ(tick_labels({1, 10, 100}, Scale::Log), (Labels{"1", "10", "100"}));
  EXPECT_EQ(tick_labels({1e-12, 1e-6, 1}, Scale::Log), (Labels{"10⁻¹²", "10⁻⁶", "10⁰"}));
  EXPECT_EQ(tick_labels({5, 10, 20}, Scale::Log), (Labels{"5", "10", "20"}));
}

}  // namespace
}  // namespace essh::plot
