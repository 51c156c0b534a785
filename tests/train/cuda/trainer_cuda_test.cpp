#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/reference_trainer.h"
#include "tests/train/trainer_fixture.h"

namespace essh {
namespace {

struct TrainerCudaTest : TrainerTest {
  void SetUp() override {
    if (gpu_names().empty()) GTEST_SKIP() << "no GPU";
    TrainerTest::SetUp();
  }

  struct Outcome {
    std::vector<StepReport> reports;
    std::map<std::string, double> losses;
    Snapshot end;
  };

  // Trains `steps` steps in T on a device, from `from` if given.
  template <class T>
  Outcome train(const Recipe& recipe, DeviceChoice device, int steps, const Snapshot* from = nullptr) {
    Setup setup(recipe, 2);
    auto stream = open_stream(device, 2);
    if (device.device == Device::Cuda) stream.choices() = tuned;
    Trainer<T> trainer(make_pretraining(recipe, setup.config), recipe, setup.config, setup.data, stream, *setup.alone);
    Parameters<float> weights(setup.config);
    initialise(weights, setup.config, recipe.run.seed);
    trainer.start(weights);
    if (from) trainer.resume(*from);
    Outcome outcome;
    for (int i = 0; i < steps; ++i) outcome.reports.push_back(trainer.step());
    outcome.losses = trainer.validate();
    outcome.end = trainer.snapshot();
    if (device.device == Device::Cuda) tuned = stream.choices();
    return outcome;
  }

  // Twenty steps of pretraining in double, and the losses after them.
  static Curve twenty_exact_steps(const Recipe& recipe) {
    const Setup setup(recipe, 2);
    ReferenceTrainer reference(make_pretraining(recipe, setup.config)->settings, recipe, setup.config, setup.data);
    Curve exact;
    for (int i = 0; i < 20; ++i) exact.reports.push_back(reference.pretraining_step());
    exact.losses = reference.validate();
    return exact;
  }

  // Autotuned algorithms, shared by all runs: others may round differently.
  std::map<std::string, std::string> tuned;
};

constexpr DeviceChoice kGpu{.device = Device::Cuda};

TEST_F(TrainerCudaTest, TwentyStepsFollowTheReferenceInDouble) {
  const auto settings = recipe({"elastic.ordering_period=0"});
  const Curve exact = twenty_exact_steps(settings);
  const auto check = [&](const char* name, const Outcome& outcome, const CurveErrors& bounds) {
    const auto errors = compare({outcome.reports, outcome.losses}, exact);
    EXPECT_LE(errors.loss, bounds.loss) << name;
    EXPECT_LE(errors.norm, bounds.norm) << name;
    EXPECT_LE(errors.divergence, bounds.divergence) << name;
    fmt::print("20 steps in {}: loss {:.0e}, gradient's norm {:.0e}, divergence {:.0e} from double\n", name,
               errors.loss, errors.norm, errors.divergence);
  };
  check("float32", train<float>(settings, kGpu, 20), {.loss = 1e-6, .norm = 1e-5, .divergence = 5e-4});
  constexpr CurveErrors kHalf{.loss = 1e-3, .norm = 1e-2, .divergence = 2e-2};
  check("bf16", train<BFloat16>(settings, kGpu, 20), kHalf);
  const auto wide = recipe({"elastic.ordering_period=0", "model.residual_in_fp32=true"});
  check("bf16 with a float32 residual", train<BFloat16>(wide, kGpu, 20), kHalf);
}

TEST_F(TrainerCudaTest, TwentyStepsOfMuonFollowTheReferenceInDouble) {
  const auto settings = recipe({"elastic.ordering_period=0", "optimizer.algorithm=muon"});
  const Curve exact = twenty_exact_steps(settings);
  const auto check = [&](const char* name, const Outcome& outcome, double loss) {
    const auto errors = compare({outcome.reports, outcome.losses}, exact);
    EXPECT_LE(errors.loss, loss) << name;
    fmt::print("20 steps of Muon in {}: loss {:.0e}, gradient's norm {:.0e} from double\n", name, errors.loss,
               errors.norm);
  };
  check("float32", train<float>(settings, kGpu, 20), 1e-5);
  check("bf16", train<BFloat16>(settings, kGpu, 20), 2e-2);
}

TEST_F(TrainerCudaTest, ResumingAndRepeatingChangeNoBit) {
  for (const char* arm : {"model.residual_in_fp32=false", "model.residual_in_fp32=true", "optimizer.algorithm=muon"}) {
    SCOPED_TRACE(arm);
    const auto settings = recipe({arm});
    const auto straight = train<BFloat16>(settings, kGpu, 12), again = train<BFloat16>(settings, kGpu, 12);
    EXPECT_TRUE(same_bits(straight.end.weights, again.end.weights));
    const auto part = train<BFloat16>(settings, kGpu, 7), rest = train<BFloat16>(settings, kGpu, 5, &part.end);
    EXPECT_TRUE(same_bits(straight.end.weights, rest.end.weights));
    EXPECT_TRUE(same_bits(straight.end.states, rest.end.states));
    EXPECT_EQ(straight.end.squares, rest.end.squares);
  }
}

// A trainer records the passes of a budget when they come a third time. Here no trainer gets that far in one step, so a
// chain of trainers with a step each never replays.
TEST_F(TrainerCudaTest, RecordedPassesChangeNoBit) {
  for (const char* joint : {"elastic.joint=false", "elastic.joint=true"}) {
    SCOPED_TRACE(joint);
    const auto settings = recipe({joint, "run.batch=4", "model.slopes=true", "elastic.warmup_tokens=100"});
    constexpr int kSteps = 20;
    train<BFloat16>(settings, kGpu, kSteps);  // autotunes
    const auto recorded = train<BFloat16>(settings, kGpu, kSteps);
    auto eager = train<BFloat16>(settings, kGpu, 1);
    for (int i = 1; i < kSteps; ++i) {
      const auto before = std::move(eager.end);
      eager = train<BFloat16>(settings, kGpu, 1, &before);
    }
    EXPECT_TRUE(same_bits(recorded.end.weights, eager.end.weights));
    EXPECT_TRUE(same_bits(recorded.end.states, eager.end.states));
    EXPECT_EQ(recorded.end.squares, eager.end.squares);
    EXPECT_EQ(recorded.reports.back().full_loss, eager.reports.back().full_loss);
  }
}

// The tape holds two residual matrices per block, in float32.
TEST_F(TrainerCudaTest, AFloat32ResidualTakesTwiceItsMemory) {
  const auto bytes = [&](const char* residual) {
    const auto settings = recipe({residual, "elastic.warmup_tokens=1e9"});
    Setup setup(settings, 2);
    auto stream = open_stream(kGpu, 2);
    Trainer<BFloat16> trainer(make_pretraining(settings, setup.config), settings, setup.config, setup.data, stream,
                              *setup.alone);
    Parameters<float> weights(setup.config);
    initialise(weights, setup.config, settings.run.seed);
    trainer.start(weights);
    trainer.step();
    return static_cast<Index>(trainer.activation_bytes());
  };
  const Index half = bytes("model.residual_in_fp32=false"), wide = bytes("model.residual_in_fp32=true");
  const auto settings = recipe();
  const Index one = settings.run.micro_batch * settings.data.context * settings.model.hidden_size * 2;
  EXPECT_GE(wide - half, 2 * settings.model.num_hidden_layers * one);
  fmt::print("activations: {} bytes, {} with a float32 residual\n", half, wide);
}

TEST_F(TrainerCudaTest, ACheckpointChangesItsDevice) {
  const auto settings = recipe({"elastic.ordering_period=0"});
  const auto straight = train<float>(settings, {}, 12), part = train<float>(settings, kGpu, 6);
  const auto rest = train<float>(settings, {}, 6, &part.end);
  EXPECT_NEAR(rest.reports.back().full_loss, straight.reports.back().full_loss,
              2e-3 * straight.reports.back().full_loss);
}

}  // namespace
}  // namespace essh
