#include <gtest/gtest.h>

#include "essh/store/model_folder.h"
#include "tests/train/reference_trainer.h"
#include "tests/train/trainer_fixture.h"

namespace essh {
namespace {

// The gradient of the total variation is discontinuous where two distributions cross, and rounding decides the side.
constexpr double kTotalVariation = 1e-4;

void expect_close(const Curve& found, const Curve& exact, const char* arm, double divergence = 1e-5) {
  const auto errors = compare(found, exact);
  EXPECT_LE(errors.loss, 2e-6) << arm;
  EXPECT_LE(errors.norm, 1e-5) << arm;
  EXPECT_LE(errors.divergence, divergence) << arm;
}

TEST_F(TrainerTest, TwentyStepsFollowTheReferenceInDouble) {
  const std::vector<std::vector<std::string>> arms = {
      {"elastic.kl=0.5"},
      {"elastic.kl=0"},
      {"elastic.label=1.5"},
      {"elastic.mixer_scale=0.25"},
      {"elastic.mixer_scale=0"},
      {"elastic.joint=true"},
      {"optimizer.clip=0.1"},
      {"optimizer.schedule=wsd"},
      {"optimizer.embedding_rate=3"},
      {"optimizer.algorithm=muon"},
      {"optimizer.algorithm=muon", "optimizer.momentum=0.8"},
  };
  for (const auto& arm : arms) {
    auto settings = arm;
    settings.emplace_back("elastic.ordering_period=0");
    Setup setup(recipe(settings), 2);
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
    expect_close(single, exact, arm.back().c_str());
  }
}

// Post-hoc elastification: a frozen parent with its own weights teaches every capacity, including the full one.
TEST_F(TrainerTest, AParentTeachesEveryCapacityAsInTheReference) {
  const auto plain =
      recipe({"elastic.parameter_targets=[1, 0.7, 0.6]", "elastic.full_share=0", "elastic.warmup_tokens=0",
              "elastic.ordering_period=0", "elastic.kl=1", "elastic.ffn_scale=1",
              "elastic.teacher=" + (folder / "parent").string(), "optimizer.schedule=constant"});
  Setup setup(plain, 2);
  Parameters<float> parent(setup.config);
  initialise(parent, setup.config, 99);
  for (auto& value : std::span(parent.data(), static_cast<std::size_t>(parent.layout().size()))) value *= 3;
  save_model(folder / "parent", setup.config, parent, full_capacity(setup.config), {});
  const auto trainer = setup.trainer();
  ReferenceTrainer reference(make_pretraining(setup.recipe, setup.config)->settings, setup.recipe, setup.config,
                             setup.data, &parent);
  Curve single, exact;
  std::map<double, Index> drawn;
  for (int i = 0; i < 12; ++i) {
    single.reports.push_back(trainer->step());
    exact.reports.push_back(reference.pretraining_step());
    for (const auto& [budget, count] : single.reports.back().micro_batches) drawn[budget] += count;
  }
  single.losses = trainer->validate();
  exact.losses = reference.validate();
  EXPECT_EQ(drawn.size(), 3u) << "the full mask and two others";
  EXPECT_GT(drawn[1.0], 8) << "masks are drawn uniformly";
  expect_close(single, exact, "posthoc");
}

TEST_F(TrainerTest, RefinementFollowsTheReferenceInDouble) {
  const std::vector<std::string> distilled = {"refine.label=0.25", "refine.kl=1", "refine.tv=0",
                                              "refine.decay=matrices"};
  for (const double teacher : {1.0, 0.5}) {
    std::vector<std::string> settings = {"refine.steps=10",
                                         "refine.rate=2e-3",
                                         "refine.decay=all",
                                         "refine.tv=5",
                                         "refine.sampling=step",
                                         "refine.smallest_share=0",
                                         fmt::format("refine.teacher_budget={}", teacher),
                                         "refine.budgets=[0.0625, 0.125, 0.25]"};
    if (teacher < 1) settings.insert(settings.end(), distilled.begin(), distilled.end());
    Setup setup(recipe(settings), 2);
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
      exact.reports.push_back(reference.refinement_step(single.reports.back().micro_batches.begin()->first, teacher));
    }
    single.losses = trainer.validate();
    exact.losses = reference.validate();
    EXPECT_LT(exact.reports.back().full_loss, exact.reports.front().full_loss - 0.2) << "it learns";
    expect_close(single, exact, "refinement", kTotalVariation);
  }
}

}  // namespace
}  // namespace essh
