#include <gtest/gtest.h>

#include "essh/store/model_folder.h"
#include "essh/train/run.h"
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
      {"model.slopes=true"},
      {"elastic.joint=true", "model.slopes=true", "optimizer.slope_rate=0.7", "optimizer.algorithm=muon",
       "optimizer.momentum=0.8"},
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

TEST_F(TrainerTest, RefinementWithKeptMomentsFollowsTheReference) {
  for (const char* algorithm : {"optimizer.algorithm=adamw", "optimizer.algorithm=muon"}) {
    Setup setup(
        recipe({algorithm, "run.steps=6", "elastic.ordering_period=0", "optimizer.schedule=constant", "refine.steps=8",
                "refine.rate=0", "refine.warmup=0", "refine.decay=matrices", "refine.moments=kept",
                "refine.schedule=linear", "refine.order=continued", "refine.sampling=step", "refine.smallest_share=0"}),
        2);
    const auto before = setup.trainer();
    ReferenceTrainer exact_before(make_pretraining(setup.recipe, setup.config)->settings, setup.recipe, setup.config,
                                  setup.data);
    while (!before->finished()) {
      before->step();
      exact_before.pretraining_step();
    }
    const auto end = before->snapshot();
    const auto refinement = [&] {
      auto made = std::make_unique<Trainer<float>>(make_refinement(setup.recipe, setup.config), setup.recipe,
                                                   setup.config, setup.data, setup.stream, *setup.alone);
      made->start(before->parameters());
      return made;
    };
    const auto trainer = refinement();
    ASSERT_TRUE(trainer->inherits());
    trainer->inherit(end);
    ReferenceTrainer reference(make_refinement(setup.recipe, setup.config)->settings, setup.recipe, setup.config,
                               setup.data);
    reference.inherit(exact_before);
    Curve single, exact;
    std::optional<Snapshot> middle;
    while (!trainer->finished()) {
      single.reports.push_back(trainer->step());
      exact.reports.push_back(reference.refinement_step(single.reports.back().micro_batches.begin()->first));
      if (trainer->step_count() == 3) middle = trainer->snapshot();
    }
    single.losses = trainer->validate();
    exact.losses = reference.validate();
    expect_close(single, exact, algorithm, kTotalVariation);

    // The age of the moments is not in a checkpoint.
    const auto resumed = refinement();
    resumed->resume(*middle);
    while (!resumed->finished()) resumed->step();
    EXPECT_TRUE(same_bits(resumed->snapshot().weights, trainer->snapshot().weights)) << algorithm;

    auto further = end;
    further.position += 8;
    const auto goes_on = refinement();
    EXPECT_EQ(goes_on->position(), end.position);
    goes_on->inherit(further);
    EXPECT_EQ(goes_on->position(), further.position) << "pretraining had skipped a batch";

    auto early = end;
    --early.step;
    EXPECT_THROW(refinement()->inherit(early), Error);
    auto other = end;
    other.weights.back() += 1;
    EXPECT_THROW(refinement()->inherit(other), Error);
  }
}

TEST_F(TrainerTest, MomentsAreKeptFromTheLastCheckpoint) {
  const auto settings = recipe({"run.steps=6", "refine.steps=4", "refine.moments=kept"});
  auto stream = cpu_stream(2);
  run_training(settings, folder / "run", stream);
  fs::copy(folder / "run", folder / "pieces", fs::copy_options::recursive);
  fs::copy(folder / "run", folder / "bare", fs::copy_options::recursive);
  run_refinement(folder / "run", {}, stream);
  run_refinement(folder / "bare", {"refine.moments=fresh"}, stream);
  EXPECT_NE(model_hash(folder / "run" / "refined"), model_hash(folder / "bare" / "refined"));
  EXPECT_THROW(run_refinement(folder / "pieces", {}, stream, {.stop_after = 2}), Error);
  // What is needed lies in the checkpoints of refinement now.
  fs::remove_all(folder / "pieces" / "checkpoints");
  run_refinement(folder / "pieces", {}, stream);
  EXPECT_EQ(model_hash(folder / "run" / "refined"), model_hash(folder / "pieces" / "refined"));
  try {
    run_refinement(folder / "pieces", {}, stream, {.restart = true});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("refine.moments=fresh"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace essh
