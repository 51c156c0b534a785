#include "essh/train/recipe.h"

#include <gtest/gtest.h>

#include <set>

#include "essh/base/error.h"
#include "essh/model/cost.h"
#include "essh/train/stage.h"

namespace essh {
namespace {

std::string problem(const std::string& yaml, const std::vector<std::string>& settings = {}) {
  try {
    parse_recipe(yaml, "r.yaml", settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Recipe, EveryBuiltInRecipeRoundTrips) {
  for (const auto& name : recipe_names()) {
    const auto recipe = load_recipe(name, {"run.seed=5", "refine.budgets=[0.25, 1]"});
    EXPECT_EQ(recipe.run.seed, 5u);
    EXPECT_EQ(recipe.refine.budgets, (std::vector<double>{0.25, 1}));
    EXPECT_EQ(recipe_yaml(parse_recipe(recipe_yaml(recipe), "again", {})), recipe_yaml(recipe)) << name;
  }
}

TEST(Recipe, ThePapersConstants) {
  const auto small = load_recipe("370m", {}), large = load_recipe("1.5b", {});
  EXPECT_EQ(small.run.batch * small.data.context, 262144);
  EXPECT_EQ(large.run.batch * large.data.context, 524288);
  EXPECT_EQ(small.refine.batch * small.data.context, 131072);
  EXPECT_NEAR(static_cast<double>(small.run.steps) * 262144, 7.4e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(large.run.steps) * 524288, 100e9, 0.01e9);
  EXPECT_EQ(small.elastic.full_share, 0.75);
  EXPECT_EQ(small.elastic.kl, 0.5);
  EXPECT_EQ(small.elastic.warmup_tokens, 250e6);
}

TEST(Recipe, MistakesAreNamedWithARemedy) {
  EXPECT_EQ(problem("run: {stepz: 3}"), "r.yaml: run: unknown key \"stepz\", did you mean \"steps\"?");
  EXPECT_EQ(problem("run: {steps: -1}"), "r.yaml: run: steps must be between 1 and 1000000000000, got -1");
  EXPECT_EQ(problem("elastic: {sampling: rampe}"),
            "r.yaml: elastic.sampling must be one of fixed, ramp, progressive, gap, adaptive, dense, got \"rampe\", "
            "did you mean \"ramp\"?");
  EXPECT_EQ(problem("optimizer: {algorithm: muonn}"),
            "r.yaml: optimizer.algorithm must be one of adamw, muon, got \"muonn\", did you mean \"muon\"?");
  EXPECT_EQ(problem("run: {batch: 5, micro_batch: 2}"), "r.yaml: run.batch must be a multiple of run.micro_batch");
  EXPECT_NE(problem("data: {task: \"mqar\xff\"}").find("is not UTF-8"), std::string::npos);
  EXPECT_NE(problem("{[1]: 2}").find("a key must be a word"), std::string::npos);
  EXPECT_NE(problem("model: tiny", {"model.preset=dna"}).find("before .preset is a value"), std::string::npos);
  EXPECT_NE(problem("[1]", {"run.steps=1"}).find("is a value"), std::string::npos);
  EXPECT_NE(problem("run: [1"), "accepted");
  EXPECT_NE(problem("run: {steps: 1, steps: 2}"), "accepted");
  EXPECT_NE(problem("", {"run.steps"}), "accepted");
  // Nested aliases: a few hundred bytes that expand to 10^8 values.
  std::string bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) bomb += fmt::format("{}*a{}", k ? "," : "", i - 1);
    bomb += "]\n";
  }
  EXPECT_EQ(problem(bomb), "r.yaml: more than 20000 values");
  EXPECT_EQ(problem("", {"run.steps=\"3\""}), "r.yaml: run: steps must be a whole number");
}

TEST(Recipe, TasksHaveThePapersSizes) {
  const auto parameters = [](const char* name, Index tokens, const char* tier) {
    const auto config = recipe_config(load_recipe(name, {}), tokens, 0);
    return static_cast<double>(cost_of(config, find_tier(config, tier).capacity).parameters);
  };
  EXPECT_NEAR(parameters("mqar", 8192, "T10"), 1.81e6, 0.006e6);
  EXPECT_NEAR(parameters("mqar", 8192, "T4"), 1.43e6, 0.005e6);
  EXPECT_NEAR(parameters("mqar", 8192, "T1"), 1.24e6, 0.005e6);
  EXPECT_NEAR(parameters("palindrome", 66, "T10"), 0.765e6, 0.0005e6);
  EXPECT_NEAR(parameters("palindrome", 66, "T4"), 0.389e6, 0.0005e6);
  EXPECT_NEAR(parameters("palindrome", 66, "T1"), 0.198e6, 0.0005e6);
  EXPECT_EQ(problem("data: {task: mqar, path: x}"), "r.yaml: data.path and data.task exclude each other");
}

TEST(Recipe, DnaHasThePapersSizeAndLength) {
  const auto recipe = load_recipe("dna", {});
  const auto config = recipe_config(recipe, 12, 0);
  EXPECT_EQ(cost_of(config, full_capacity(config)).parameters, 533952);
  EXPECT_EQ(config.vocab_size, 12);
  const double tokens = static_cast<double>(recipe.run.steps * recipe.run.batch * recipe.data.context);
  EXPECT_GE(tokens, 3e9);
  EXPECT_LT(tokens, 3.001e9);
}

TEST(Recipe, PosthocHasThePapersSettings) {
  const auto recipe = load_recipe("posthoc", {"elastic.teacher=/parent"});
  const auto config = recipe_config(recipe, 50257, 50256);
  EXPECT_NEAR(static_cast<double>(recipe.run.steps * recipe.run.batch * recipe.data.context), 0.5e9, 0.001e9);
  EXPECT_EQ(recipe.elastic.calibration_tokens, 2e6);
  const auto stage = make_pretraining(recipe, config);
  EXPECT_EQ(stage->settings.schedule.rate(recipe.run.steps - 1), 1e-4) << "constant after the warm-up";
  EXPECT_LT(stage->settings.schedule.rate(0), 1e-5);
  const std::vector<double> targets = {370866144, 0.75 * 370866144, 0.5 * 370866144, 240.3e6, 162.1e6};
  const auto budgets = CapacitySampler(recipe.elastic, config, 1, 100).budgets();
  ASSERT_EQ(budgets.size(), targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto found = static_cast<double>(cost_of(config, capacity_at(config, budgets[i])).parameters);
    EXPECT_NEAR(found / targets[i], 1, 0.012) << i;
    const auto plan = stage->plan(budgets[i]);
    ASSERT_TRUE(plan.reduced) << "every mask has the parent for a teacher";
    EXPECT_EQ(plan.reduced->kl, 1);
    EXPECT_EQ(plan.reduced->label, 1);
    EXPECT_EQ(plan.reduced->ffn_gradient, 1);
  }
  EXPECT_EQ(capacity_at(config, budgets[2]), find_tier(config, "T4").capacity);
  EXPECT_NE(problem("elastic: {budgets: [1], parameter_targets: [1]}").find("exclude each other"), std::string::npos);
  const auto impossible = load_recipe("posthoc", {"elastic.parameter_targets=[0.01]"});
  EXPECT_THROW(CapacitySampler(impossible.elastic, config, 1, 100), Error);
}

TEST(Recipe, ArmsHaveThePapersSizes) {
  const auto millions = [](const char* setting, const char* tier) {
    const auto config = recipe_config(load_recipe("370m", {setting}), 50257, 50256);
    return static_cast<double>(cost_of(config, find_tier(config, tier).capacity).parameters) / 1e6;
  };
  EXPECT_NEAR(millions("model.spectral_modes=16", "T10"), 384.0, 0.05);
  EXPECT_NEAR(millions("model.intermediate_size=3072", "T10"), 280.0, 0.05);
  EXPECT_NEAR(millions("model.intermediate_size=3072", "T1"), 84.6, 0.05);
  EXPECT_NEAR(millions("model.intermediate_size=6144", "T10"), 461.7, 0.05);
  EXPECT_NEAR(millions("model.intermediate_size=6144", "T1"), 103.5, 0.05);
  EXPECT_NEAR(millions("model.ffn_exponent=0", "T1"), 338.2, 0.05);
  EXPECT_NEAR(millions("model.channel_exponent=0.25", "T1"), 103.0, 0.05);
}

TEST(Recipe, BudgetsFollowTheChannels) {
  const auto budgets = [](int channels) {
    const auto recipe = load_recipe("370m", {fmt::format("model.spectral_channels={}", channels),
                                             "model.fixed_mixer_width=true", "elastic.budget_channels=32"});
    const auto config = recipe_config(recipe, 50257, 50256);
    EXPECT_EQ(config.spectral_channels * config.channel_width, 896);
    const auto refinement = make_refinement(recipe, config);
    return std::tuple(CapacitySampler(recipe.elastic, config, 1, 100).budgets(), refinement->plan(0.25).teacher_budget,
                      cost_of(config, full_capacity(config)).parameters, capacity_at(config, 0.5).channels);
  };
  const auto [few, few_teacher, few_parameters, few_half] = budgets(16);
  EXPECT_EQ(few, (std::vector<double>{0.125, 0.1875, 0.25, 0.3125, 0.375, 0.5, 0.75, 1, 1, 1}));
  EXPECT_EQ(few_teacher, 1);
  EXPECT_NEAR(static_cast<double>(few_parameters), 364.3e6, 0.05e6);
  const auto [many, many_teacher, many_parameters, many_half] = budgets(64);
  EXPECT_EQ(many,
            (std::vector<double>{1 / 32.0, 3 / 64.0, 1 / 16.0, 5 / 64.0, 3 / 32.0, 0.125, 0.1875, 0.25, 0.375, 0.5}));
  EXPECT_EQ(many_teacher, 0.5);
  EXPECT_NEAR(static_cast<double>(many_parameters), 384.0e6, 0.05e6);
  EXPECT_EQ(many_half, 45) << "channels of the teacher";
  EXPECT_THROW(
      recipe_config(load_recipe("370m", {"model.spectral_channels=24", "model.fixed_mixer_width=true"}), 50257, 0),
      Error);
}

TEST(Recipe, ConfigFollowsTheRecipe) {
  const auto recipe = load_recipe("tiny", {"model.ffn_exponent=0", "model.hidden_size=64"});
  const auto config = recipe_config(recipe, 1000, 3);
  EXPECT_EQ(config.vocab_size, 1024);
  EXPECT_EQ(config.eos_token_id, 3);
  EXPECT_EQ(config.channel_width, 4);
  EXPECT_EQ(find_tier(config, "T1").capacity, (Capacity{4, config.intermediate_size})) << "mixer-only nesting";
  const auto specialist = recipe_config(load_recipe("tiny", {"model.tier=T4"}), 1000, 3);
  EXPECT_FALSE(specialist.elastic.is_family());
  EXPECT_EQ(full_capacity(specialist), find_tier(recipe_config(load_recipe("tiny", {}), 1000, 3), "T4").capacity);
}

TEST(Stage, RefinementDrawsOneBudgetAStepOrShufflesTheTiers) {
  const auto drawn = [](std::vector<std::string> settings, Index step) {
    settings.insert(settings.begin(), {"refine.sampling=step", "refine.smallest_share=0"});
    const auto recipe = load_recipe("tiny", settings);
    return make_refinement(recipe, recipe_config(recipe, 256, 0))->budgets(step, 0, 20);
  };
  for (Index step = 0; step < 10; ++step) {
    const auto one = drawn({"refine.budgets=[0.25, 0.5]"}, step);
    EXPECT_EQ(one, std::vector<double>(20, one.front()));
    EXPECT_TRUE(one.front() == 0.25 || one.front() == 0.5);
  }
  const auto config = recipe_config(load_recipe("tiny", {}), 256, 0);
  std::set<double> below;
  for (const auto& tier : tiers_of(config)) {
    if (tier.budget < 1) below.insert(tier.budget);
  }
  const auto shuffled = drawn({"refine.sampling=shuffle"}, 3);
  EXPECT_EQ(std::set<double>(shuffled.begin(), shuffled.end()), below);
  EXPECT_NE(shuffled, drawn({"refine.sampling=shuffle"}, 4));
  EXPECT_EQ(drawn({"refine.sampling=shuffle", "model.tier=T4"}, 0).size(), 20u) << "a specialist has no tiers below";
  const double smallest = *below.begin();
  Index of_smallest = 0, steps_of_smallest = 0;
  for (Index step = 0; step < 200; ++step) {
    const auto mixed = drawn({"refine.sampling=shuffle", "refine.smallest_share=0.4"}, step);
    of_smallest += std::ranges::count(mixed, smallest);
    const auto one = drawn({"refine.budgets=[0.25, 0.5, 0.75]", "refine.smallest_share=0.4"}, step);
    EXPECT_EQ(one, std::vector<double>(20, one.front()));
    steps_of_smallest += one.front() == 0.25 ? 1 : 0;
  }
  // 0.4, and the smallest tier's own ninth of the rest; 0.4 and a third of the rest.
  EXPECT_NEAR(static_cast<double>(of_smallest) / 4000, 0.4 + 0.6 / 9, 0.04);
  EXPECT_NEAR(static_cast<double>(steps_of_smallest) / 200, 0.6, 0.12);
}

TEST(Stage, RefinementTrainsTheFullCapacityAloneInAShareOfTheMicroBatches) {
  for (const char* sampling : {"step", "shuffle"}) {
    SCOPED_TRACE(sampling);
    const auto recipe = load_recipe("tiny", {std::string("refine.sampling=") + sampling, "refine.full_share=0.3"});
    const auto stage = make_refinement(recipe, recipe_config(recipe, 256, 0));
    Index full = 0;
    for (Index step = 0; step < 100; ++step) {
      const auto budgets = stage->budgets(step, 0, 20);
      full += std::ranges::count(budgets, 1.0);
      EXPECT_EQ(budgets, stage->budgets(step, 0, 20));
    }
    EXPECT_NEAR(static_cast<double>(full) / 2000, 0.3, 0.04);
    const auto alone = stage->plan(1), both = stage->plan(0.5);
    EXPECT_TRUE(alone.full && !alone.reduced);
    EXPECT_TRUE(both.full && both.reduced);
    const auto without = load_recipe("tiny", {std::string("refine.sampling=") + sampling, "refine.full_share=0"});
    EXPECT_TRUE(make_refinement(without, recipe_config(without, 256, 0))->plan(1).reduced);
  }
}

TEST(Schedule, RisesAndFalls) {
  Schedule s{.peak = 1, .warmup = 0.1, .floor = 0.1, .decay_share = 0.2, .steps = 100};
  EXPECT_DOUBLE_EQ(s.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(9), 1.0);
  EXPECT_NEAR(s.rate(55), 0.55, 1e-12);
  EXPECT_NEAR(s.rate(100), 0.1, 1e-12);
  s.shape = "wsd";
  EXPECT_DOUBLE_EQ(s.rate(80), 1.0);
  EXPECT_NEAR(s.rate(90), 0.55, 1e-12);
  s.shape = "constant";
  EXPECT_DOUBLE_EQ(s.rate(99), 1.0);
}

TEST(Schedule, TheStagesTakeTheirOwnSettings) {
  const auto recipe = load_recipe("tiny", {"optimizer.schedule=wsd", "optimizer.decay_share=0.5", "refine.steps=10"});
  const auto config = recipe_config(recipe, 256, 0);
  const auto pretraining = make_pretraining(recipe, config)->settings.schedule,
             refinement = make_refinement(recipe, config)->settings.schedule;
  EXPECT_EQ(pretraining.shape, "wsd");
  EXPECT_EQ(pretraining.peak, recipe.optimizer.rate);
  EXPECT_EQ(pretraining.steps, recipe.run.steps);
  EXPECT_NEAR(pretraining.rate(recipe.run.steps), recipe.optimizer.floor * recipe.optimizer.rate, 1e-12);
  EXPECT_EQ(refinement.peak, recipe.refine.rate);
  EXPECT_NEAR(refinement.rate(10), 0, 1e-12) << "falls to zero";
}

TEST(Schedule, RefinementStartsWherePretrainingEnds) {
  const auto peak = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"refine.rate=0", "optimizer.rate=0.25"});
    const auto recipe = load_recipe("tiny", settings);
    return make_refinement(recipe, recipe_config(recipe, 256, 0))->settings.schedule.peak;
  };
  EXPECT_DOUBLE_EQ(peak({"optimizer.schedule=constant"}), 0.25);
  EXPECT_DOUBLE_EQ(peak({"optimizer.schedule=cosine", "optimizer.floor=0.5"}), 0.125);
  EXPECT_DOUBLE_EQ(peak({"optimizer.schedule=wsd", "optimizer.decay_share=0.5", "optimizer.floor=0.1"}), 0.025);
  EXPECT_THROW(peak({"optimizer.schedule=cosine", "optimizer.floor=0"}), Error);
}

}  // namespace
}  // namespace essh
