#include "essh/evaluate/harness_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace essh {
namespace {

// The expected values were printed by Python 3.11.
TEST(PythonRandom, DrawsPythonsNumbers) {
  PythonRandom seven(7);
  EXPECT_EQ(seven.random(), 0.32383276483316237);
  EXPECT_EQ(seven.random(), 0.15084917392450192);
  EXPECT_EQ(seven.random(), 0.6509344730398537);
  PythonRandom zero(0);
  EXPECT_EQ(zero.random(), 0.8444218515250481);
  double last = 0;
  for (int i = 0; i < 700; ++i) last = zero.random();
  EXPECT_EQ(last, 0.6380736282281027) << "past the first twist of the state";
}

TEST(HarnessStatistics, AreThoseOfTheHarness) {
  const std::vector<double> hits = {1, 0, 0, 1, 1, 0, 1};
  EXPECT_EQ(mean_of(hits), 4.0 / 7.0);
  EXPECT_EQ(standard_error(hits), 0.20203050891044214);
  EXPECT_TRUE(std::isnan(standard_error(std::vector<double>{1})));
  const std::vector<double> likelihoods = {-1.5, -2.25, -0.5, -7.0};
  EXPECT_EQ(perplexity_of(likelihoods), 16.651494963610144);
  const std::vector<std::vector<double>> series = {likelihoods, {-1, -1, -1, -1}};
  for (const int threads : {1, 3}) {
    const auto errors = perplexity_errors(series, 3000, threads);
    EXPECT_NEAR(errors[0], 91.73398635578788, 1e-11);
    EXPECT_NEAR(errors[1], 0, 1e-12);
  }
  EXPECT_TRUE(std::isnan(perplexity_errors(series, 0, 1)[0]));
}

}  // namespace
}  // namespace essh
