#include "essh/train/named_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "essh/base/file.h"
#include "essh/train/capacity_sampler.h"
#include "essh/train/stage.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

Recipe paper(const std::string& name, const std::vector<std::string>& settings = {}) {
  return load_recipe(name, settings, "paper");
}

TEST(PaperSettings, EveryFieldHasThePapersValue) {
  for (const std::string name : {"tiny", "370m", "1.5b"}) {
    SCOPED_TRACE(name);
    const auto r = paper(name);
    EXPECT_EQ(r.optimizer.algorithm, "adamw");
    EXPECT_EQ(r.optimizer.rate, name == "1.5b" ? 1.0e-3 : 1.2e-3);
    EXPECT_EQ(r.optimizer.embedding_rate, 1);
    EXPECT_EQ(r.optimizer.beta1, 0.9);
    EXPECT_EQ(r.optimizer.beta2, 0.95);
    EXPECT_EQ(r.optimizer.weight_decay, 0.1);
    EXPECT_EQ(r.optimizer.clip, 1);
    EXPECT_EQ(r.optimizer.schedule, "cosine");
    EXPECT_EQ(r.optimizer.warmup, 0.01);
    EXPECT_EQ(r.optimizer.floor, 0.1);
    EXPECT_EQ(r.elastic.sampling, "fixed");
    EXPECT_EQ(r.elastic.full_share, 0.75);
    EXPECT_EQ(r.elastic.smallest_share, 0);
    EXPECT_EQ(r.elastic.warmup_tokens, 250e6);
    EXPECT_NEAR(r.elastic.warmup_share, 250e6 / 7.4e9, 5e-5);
    EXPECT_TRUE(r.elastic.budgets.empty());
    EXPECT_TRUE(r.elastic.parameter_targets.empty());
    EXPECT_EQ(r.elastic.budget_channels, 0);
    EXPECT_EQ(r.elastic.ffn_scale, 0.5);
    EXPECT_EQ(r.elastic.mixer_scale, 1);
    EXPECT_EQ(r.elastic.label, 1);
    EXPECT_EQ(r.elastic.kl, 0.5);
    EXPECT_FALSE(r.elastic.joint);
    EXPECT_EQ(r.elastic.teacher, "");
    EXPECT_EQ(r.elastic.calibration_tokens, 0);
    EXPECT_EQ(r.elastic.ordering_period, name == "tiny" ? 500 * r.run.steps / 28229 : 500);
    EXPECT_EQ(r.elastic.ordering_until, 0.8);
    EXPECT_EQ(r.refine.rate, 6e-5);
    EXPECT_EQ(r.refine.warmup, 0.05);
    EXPECT_EQ(r.refine.decay, "all");
    EXPECT_EQ(r.refine.moments, "fresh");
    EXPECT_EQ(r.refine.schedule, "cosine");
    EXPECT_EQ(r.refine.order, "own");
    EXPECT_EQ(make_refinement(r, recipe_config(r, 256, 0))->settings.inherited_steps, 0);
    EXPECT_EQ(r.refine.label, 1);
    EXPECT_EQ(r.refine.kl, 0);
    EXPECT_EQ(r.refine.tv, 5);
    EXPECT_EQ(r.refine.sampling, name == "1.5b" ? "shuffle" : "step");
    EXPECT_TRUE(r.refine.budgets.empty());
    EXPECT_EQ(r.refine.full_share, 0);
    EXPECT_EQ(r.refine.smallest_share, 0);
    EXPECT_EQ(r.refine.teacher_budget, 1);
  }
}

// Model, data, length and batches stay the recipe's.
TEST(PaperSettings, ChangeOnlyOptimizerCapacitiesAndRefinement) {
  for (const std::string name : {"tiny", "370m", "1.5b"}) {
    for (const auto& difference : recipe_differences(load_recipe(name, {}), paper(name))) {
      const auto& field = difference.field;
      EXPECT_TRUE(field.starts_with("optimizer.") || field.starts_with("elastic.") || field.starts_with("refine."))
          << field;
      EXPECT_NE(field, "refine.steps");
      EXPECT_NE(field, "refine.batch");
    }
  }
  EXPECT_FALSE(recipe_differences(load_recipe("tiny", {}), paper("tiny")).empty());
}

// Mixing starts at 250M tokens of 370m and 1.5b, and at the same share of the shorter run.
TEST(PaperSettings, MixingStartsInProportionToTheRun) {
  const auto first_mixed_step = [](const Recipe& recipe) {
    const CapacitySampler sampler(recipe.elastic, recipe_config(recipe, 256, 0), 1, recipe.run.steps);
    Index step = 0;
    while (sampler.warming_up(step, static_cast<double>(step * recipe.run.batch * recipe.data.context))) ++step;
    return step;
  };
  EXPECT_EQ(first_mixed_step(paper("370m")), 954);
  EXPECT_EQ(first_mixed_step(paper("1.5b")), 477);
  EXPECT_EQ(first_mixed_step(paper("tiny")), 14);
  EXPECT_EQ(first_mixed_step(paper("tiny", {"run.steps=100"})), 4);
}

struct PaperSettingsOfAFile : TempFolderTest {};

TEST_F(PaperSettingsOfAFile, ReplaceTheFilesAndGiveWayToSettings) {
  const auto path = (folder / "recipe.yaml").string();
  write_durably(path, R"(model: {preset: tiny, hidden_size: 64}
data: {context: 128}
optimizer: {algorithm: muon, rate: 0.1, embedding_rate: 3, beta1: 0.5, beta2: 0.5, eps: 1.0e-6, momentum: 0.5,
  weight_decay: 1, clip: 3, schedule: wsd, warmup: 0.3, floor: 0.3, decay_share: 0.4}
elastic: {sampling: ramp, full_share: 0.1, joint: true, smallest_share: 0.4, warmup_tokens: 7, warmup_share: 0.5,
  budgets: [0.5], budget_channels: 32, ffn_scale: 2, mixer_scale: 2, kl: 2, label: 2, ordering_period: 3,
  ordering_until: 0.1, activation_memory: 0.5, calibration_tokens: 9}
run: {steps: 50}
refine: {steps: 3, batch: 4, rate: 0.1, warmup: 0.5, decay: matrices, moments: kept, schedule: linear,
  order: continued, label: 2, kl: 1, tv: 1, full_share: 0.5, sampling: shuffle, budgets: [0.5], smallest_share: 0.5,
  teacher_budget: 0.5}
)");
  std::set<std::string> kept;
  for (const auto& difference : recipe_differences(paper("tiny"), paper(path))) kept.insert(difference.field);
  const std::set<std::string> expected = {"model.hidden_size",
                                          "data.context",
                                          "optimizer.eps",
                                          "optimizer.momentum",
                                          "optimizer.decay_share",
                                          "elastic.activation_memory",
                                          "run.steps",
                                          "run.batch",
                                          "run.validation_windows",
                                          "run.checkpoint_every",
                                          "refine.steps",
                                          "refine.batch"};
  EXPECT_EQ(kept, expected);

  const auto changed = paper(path, {"optimizer.algorithm=muon", "elastic.kl=1", "run.seed=9"});
  EXPECT_EQ(changed.optimizer.algorithm, "muon") << "settings come last";
  EXPECT_EQ(changed.elastic.kl, 1);
  EXPECT_EQ(changed.run.seed, 9u);
  EXPECT_EQ(changed.optimizer.rate, 1.2e-3);
  EXPECT_EQ(paper(path, {"model.preset=1.5b"}).optimizer.rate, 1.0e-3) << "the preset that is trained";
  EXPECT_EQ(recipe_yaml(parse_recipe(recipe_yaml(changed), "again", {})), recipe_yaml(changed));
}

// The recipe keeps its peak rate, which refinement starts from.
TEST(OwnSettings, KeepTheRateUntilRefinement) {
  for (const std::string name : {"tiny", "370m", "1.5b"}) {
    SCOPED_TRACE(name);
    const auto recipe = load_recipe(name, {}, "essh");
    EXPECT_EQ(recipe.optimizer.rate, load_recipe(name, {}).optimizer.rate);
    EXPECT_EQ(recipe.optimizer.algorithm, "muon");
    const auto config = recipe_config(recipe, 256, 0);
    const auto pretraining = make_pretraining(recipe, config)->settings.schedule,
               refinement = make_refinement(recipe, config)->settings.schedule;
    EXPECT_EQ(pretraining.rate(recipe.run.steps), recipe.optimizer.rate);
    EXPECT_EQ(refinement.peak, pretraining.rate(recipe.run.steps));
    EXPECT_NEAR(refinement.rate(recipe.refine.steps), 0, 1e-12);
    EXPECT_EQ(refinement.rate(0), refinement.peak) << "the moments are those of pretraining";
    EXPECT_EQ(make_refinement(recipe, config)->settings.inherited_steps, recipe.run.steps);
    EXPECT_EQ(make_refinement(recipe, config)->settings.seed, make_pretraining(recipe, config)->settings.seed);
    EXPECT_EQ(make_refinement(recipe, config)->settings.first_sequence, recipe.run.steps * recipe.run.batch)
        << "the first that pretraining has not seen";
    EXPECT_NEAR(refinement.rate(recipe.refine.steps / 2) / refinement.peak, 0.5, 0.01) << "linear";
    EXPECT_EQ(make_refinement(recipe, config)->settings.decay, DecayGroups::Pretraining)
        << "at this rate, decay of the embedding would count";
  }
  EXPECT_EQ(
      make_refinement(load_recipe("tiny", {"refine.rate=1e-4"}, "essh"), recipe_config(load_recipe("tiny", {}), 256, 0))
          ->settings.schedule.peak,
      1e-4);
}

// Slices cost no pass of a teacher in pretraining; in refinement the full capacity, which teaches them, sees every
// token (docs/recipe.md).
TEST(OwnSettings, DistilInRefinementOnly) {
  for (const std::string name : {"tiny", "370m", "1.5b"}) {
    SCOPED_TRACE(name);
    const auto recipe = load_recipe(name, {}, "essh");
    const auto config = recipe_config(recipe, 256, 0);
    const auto pretraining = make_pretraining(recipe, config), refinement = make_refinement(recipe, config);
    EXPECT_FALSE(pretraining->plan(0.25).full);
    EXPECT_FALSE(pretraining->plan(0.25).taught());
    EXPECT_TRUE(refinement->plan(0.25).full);
    EXPECT_TRUE(refinement->plan(0.25).taught());
    for (const auto* stage : {pretraining.get(), refinement.get()}) {
      EXPECT_EQ(stage->plan(0.25).budget, 0.25);
      EXPECT_TRUE(stage->plan(1).full);
      EXPECT_FALSE(stage->plan(1).reduced);
    }
    const auto drawn = refinement->budgets(0, 0, 1000);
    EXPECT_NEAR(static_cast<double>(std::ranges::count(drawn, 1.0)), 600, 60) << "alone in three fifths";
  }
}

TEST(PaperSettings, MistakesNameTheChoices) {
  const auto problem = [](const std::string& recipe, const std::string& named) -> std::string {
    try {
      load_recipe(recipe, {}, named);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(problem("tiny", "papr"),
            "--recipe: there are no settings \"papr\", did you mean \"paper\"? (there are paper, essh)");
  for (const char* own : {"posthoc", "mqar", "dna", "transformer-370m", "matformer-370m"})
    EXPECT_NE(problem(own, "paper").find("is for the models tiny, 370m, 1.5b; recipe"), std::string::npos) << own;
}

}  // namespace
}  // namespace essh
