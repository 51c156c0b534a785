#include "essh/train/capacity_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace essh {
namespace {

constexpr Index kSteps = 1000;

CapacitySampler make(ElasticRecipe recipe) {
  return {recipe, preset("tiny"), 7, kSteps};
}

double share_of_full(const CapacitySampler& sampler, Index first, Index last, Index micro = 16) {
  double full = 0, all = 0;
  for (Index step = first; step < last; ++step) {
    for (const double budget : sampler.draw(step, 1e12, micro)) {
      full += budget == 1.0;
      ++all;
    }
  }
  return full / all;
}

TEST(CapacitySampler, ReservesTheShareAndDrawsTheRestUniformly) {
  const auto sampler = make({});
  EXPECT_NEAR(share_of_full(sampler, 0, kSteps), 0.775, 0.01);
  std::map<double, int> counts;
  for (Index step = 0; step < kSteps; ++step) {
    const auto drawn = sampler.draw(step, 1e12, 4);
    EXPECT_EQ(drawn.size(), 4u);
    EXPECT_GE(std::count(drawn.begin(), drawn.end(), 1.0), 3);
    for (const double budget : drawn) ++counts[budget];
  }
  EXPECT_EQ(counts.size(), 10u);
  for (const auto& [budget, count] : counts) {
    if (budget < 1) {
      EXPECT_NEAR(count, 100, 40) << budget;
    }
  }
}

TEST(CapacitySampler, TheShareHoldsForAnyNumberOfMicroBatches) {
  for (const Index micro : {1, 2, 3, 5, 16})
    EXPECT_NEAR(share_of_full(make({}), 0, kSteps, micro), 0.775, 0.02) << micro;
}

TEST(CapacitySampler, TheSmallestBudgetHasAShareOfItsOwn) {
  const auto sampler = make({.full_share = 0.5, .smallest_share = 0.6});
  std::map<double, int> counts;
  for (Index step = 0; step < kSteps; ++step) {
    for (const double budget : sampler.draw(step, 1e12, 4)) ++counts[budget];
  }
  const double reduced = 2.0 * kSteps;
  EXPECT_NEAR(counts.begin()->second / reduced, 0.6 + 0.04, 0.04);
  EXPECT_EQ(counts.size(), 10u);
  EXPECT_NEAR(std::next(counts.begin())->second / reduced, 0.04, 0.015);
}

TEST(CapacitySampler, TheSharesOfARecipeAreCountedBeforeTheRun) {
  const auto shares = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"run.steps=4000", "run.batch=8", "run.micro_batch=4", "data.context=256",
                                     "elastic.full_share=0.75", "elastic.smallest_share=0"});
    const auto recipe = load_recipe("tiny", settings);
    return reduced_shares(recipe, recipe_config(recipe, 256, 0));
  };
  const auto none = shares({"elastic.warmup_tokens=0"});
  ASSERT_TRUE(none);
  EXPECT_NEAR(none->all, 0.225, 0.01) << "two micro-batches a step";
  EXPECT_EQ(none->all, none->after_warmup);
  const auto half = shares({fmt::format("elastic.warmup_tokens={}", 2000 * 8 * 256)});
  EXPECT_NEAR(half->all, 0.225 / 2, 0.005);
  EXPECT_NEAR(half->after_warmup, 0.225, 0.01);
  EXPECT_EQ(shares({"elastic.warmup_tokens=1e12"})->all, 0);
  EXPECT_EQ(shares({"elastic.sampling=dense"})->all, 0);
  EXPECT_FALSE(shares({"elastic.sampling=gap"}));
}

TEST(CapacitySampler, FullCapacityOnlyDuringWarmUpAndForDense) {
  const auto sampler = make({.warmup_tokens = 500});
  for (const double budget : sampler.draw(3, 499, 64)) EXPECT_EQ(budget, 1.0);
  const auto later = sampler.draw(3, 500, 64);
  EXPECT_NE(std::count(later.begin(), later.end(), 1.0), 64);
  EXPECT_EQ(share_of_full(make({.sampling = "dense"}), 0, 50), 1.0);
}

TEST(CapacitySampler, TheWarmUpEndsWithItsTokensOrItsShareOfTheSteps) {
  const auto mixed = [](const CapacitySampler& sampler, Index step, double tokens) {
    const auto drawn = sampler.draw(step, tokens, 64);
    EXPECT_EQ(sampler.warming_up(step, tokens), std::count(drawn.begin(), drawn.end(), 1.0) == 64);
    return !sampler.warming_up(step, tokens);
  };
  const auto sampler = make({.warmup_tokens = 500, .warmup_share = 0.1});
  EXPECT_FALSE(mixed(sampler, kSteps / 10 - 1, 499));
  EXPECT_TRUE(mixed(sampler, kSteps / 10, 499));
  EXPECT_TRUE(mixed(sampler, 3, 500));
  EXPECT_FALSE(mixed(make({.warmup_tokens = 500}), kSteps - 1, 499)) << "no limit by default";
}

TEST(CapacitySampler, IsAPureFunctionOfSeedAndStep) {
  const auto a = make({}), b = make({});
  for (Index step = 0; step < 50; ++step) EXPECT_EQ(a.draw(step, 1e12, 16), b.draw(step, 1e12, 16));
  EXPECT_NE(a.draw(1, 1e12, 64), a.draw(2, 1e12, 64));
}

TEST(CapacitySampler, RampAndProgressiveFollowTheirSchedules) {
  const auto ramp = make({.sampling = "ramp"});
  EXPECT_DOUBLE_EQ(ramp.full_share(0), 0.75);
  EXPECT_DOUBLE_EQ(ramp.full_share(kSteps / 2), 0.75);
  EXPECT_DOUBLE_EQ(ramp.full_share(kSteps * 3 / 4), 0.875);
  EXPECT_GE(share_of_full(ramp, kSteps - 20, kSteps, 4), 0.98);
  // The paper's stages (app:elastic_ablations). Full capacity comes only from full_share, never from the draw.
  const auto progressive = make({.sampling = "progressive", .full_share = 0});
  const auto drawn = [&](Index step) {
    std::set<double> parts;
    for (Index s = step; s < step + 20; ++s) {
      for (const double budget : progressive.draw(s, 1e12, 16)) parts.insert(32 * budget);
    }
    return parts;
  };
  EXPECT_EQ(drawn(0), (std::set<double>{16, 24}));
  EXPECT_EQ(drawn(130), (std::set<double>{16, 24}));
  EXPECT_EQ(drawn(150), (std::set<double>{8, 12, 16, 24}));
  EXPECT_EQ(drawn(300), (std::set<double>{4, 5, 6, 8, 12, 16, 24}));
  EXPECT_EQ(drawn(450), (std::set<double>{2, 3, 4, 5, 6, 8, 12, 16, 24}));
  EXPECT_NEAR(share_of_full(make({.sampling = "progressive"}), 0, kSteps), 0.75, 1e-9);
}

TEST(CapacitySampler, GapsAndProgressDecideTheWeights) {
  auto gap = make({.sampling = "gap"});
  EXPECT_EQ(share_of_full(gap, 0, 20), 1.0) << "nothing is known before the first validation";
  EXPECT_TRUE(gap.wants_validation(0));
  EXPECT_TRUE(gap.wants_validation(500));
  EXPECT_FALSE(gap.wants_validation(499));
  gap.validated({{0.0625, 6.0}, {0.5, 4.0}, {1.0, 4.0}});
  std::map<double, int> counts;
  for (Index step = 0; step < 500; ++step) {
    for (const double budget : gap.draw(step, 0, 4)) ++counts[budget];
  }
  EXPECT_GT(counts[0.0625], 3 * std::max(1, counts[0.375]));
  EXPECT_EQ(counts[0.75], 0) << "no gap, no share";

  auto adaptive = make({.sampling = "adaptive"});
  adaptive.validated({{0.0625, 6.0}, {0.5, 5.0}, {1.0, 5.0}});
  EXPECT_EQ(share_of_full(adaptive, 0, 20), 1.0) << "active from the second validation on";
  adaptive.validated({{0.0625, 5.9}, {0.5, 4.0}, {1.0, 4.0}});
  EXPECT_DOUBLE_EQ(adaptive.full_share(501), 0.5) << "full capacity falls fast, so it needs least";
  adaptive.validated({{0.0625, 4.9}, {0.5, 3.9}, {1.0, 4.0}});
  EXPECT_NEAR(adaptive.full_share(1001), 0.55, 1e-12) << "at most 0.05 a time";
  auto copy = make({.sampling = "adaptive"});
  copy.restore(adaptive.state());
  EXPECT_EQ(copy.draw(700, 0, 64), adaptive.draw(700, 0, 64));
  EXPECT_THROW(copy.restore({1, 5}), Error);
}

}  // namespace
}  // namespace essh
