#include <gtest/gtest.h>

#include "tests/train/reference_trainer.h"
#include "tests/train/trainer_fixture.h"

namespace essh {
namespace {

// The gradient of the total variation jumps where two distributions cross, and rounding may fall on either side.
constexpr double kTotalVariation = 1e-4;

void expect_close(const Curve& found, const Curve& exact, const char* arm, double divergence = 1e-5) {
  const auto errors = compare(found, exact);
  EXPECT_LE(errors.loss, 2e-6) << arm;
  EXPECT_LE(errors.norm, 1e-5) << arm;
  EXPECT_LE(errors.divergence, divergence) << arm;
}

TEST_F(TrainerTest, TwentyStepsFollowTheReferenceInDouble) {
  for (const char* arm : {"elastic.kl=0.5", "elastic.kl=0", "elastic.label=1.5", "elastic.mixer_scale=0.25",
                          "elastic.mixer_scale=0", "optimizer.clip=0.1", "optimizer.schedule=wsd"}) {
    Setup setup(recipe({"elastic.ordering_period=0", arm}), 2);
    const auto trainer = setup.trainer();
    ReferenceTrainer reference(make_pretraining(setup.recipe, setup.config)->settings, setup.recipe, setup.config,
                               setup.data);
    Curve single, exact;
    for (int i = 0; i < 20; ++i) {
      single.reports.push_back(trainer->step());
      exact.reports.push_back(reference.pretraining_step());
    }
    single.losses = trainer->validate();
    exact.losses = reference.validate();
    EXPECT_LT(exact.reports.back().full_loss, exact.reports.front().full_loss - 0.5) << "it learns";
    expect_close(single, exact, arm);
  }
}

TEST_F(TrainerTest, RefinementFollowsTheReferenceInDouble) {
  Setup setup(recipe({"refine.steps=10", "refine.rate=2e-3"}), 2);
  Trainer<float> trainer(make_refinement(setup.recipe, setup.config), setup.recipe, setup.config, setup.data,
                         setup.stream, *setup.alone);
  Parameters<float> start(setup.config);
  initialise(start, setup.config, setup.recipe.run.seed);
  trainer.start(start);
  ReferenceTrainer reference(make_refinement(setup.recipe, setup.config)->settings, setup.recipe, setup.config,
                             setup.data);
  Curve single, exact;
  for (int i = 0; i < 10; ++i) {
    single.reports.push_back(trainer.step());
    ASSERT_EQ(single.reports.back().micro_batches.size(), 1u) << "one capacity a step";
    exact.reports.push_back(reference.refinement_step(single.reports.back().micro_batches.begin()->first));
  }
  single.losses = trainer.validate();
  exact.losses = reference.validate();
  EXPECT_LT(exact.reports.back().full_loss, exact.reports.front().full_loss - 0.2) << "it learns";
  expect_close(single, exact, "refinement", kTotalVariation);
}

}  // namespace
}  // namespace essh
