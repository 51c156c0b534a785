#include <gtest/gtest.h>

#include <cmath>

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

  // `steps` steps in T on a device, from a snapshot when one is given.
  template <class T>
  Outcome train(const Recipe& recipe, DeviceChoice device, int steps, const Snapshot* from = nullptr) {
    Setup setup(recipe, 2);
    auto stream = open_stream(device, 2);
    if (device.device == Device::Cuda) stream.choices() = tuned;
    Trainer<T> trainer(Stage::Pretraining, recipe, setup.config, setup.data, stream, *setup.alone);
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

  // The same choices in every run: other ones may round differently.
  std::map<std::string, std::string> tuned;
};

constexpr DeviceChoice kGpu{.device = Device::Cuda};

void expect_same_curve(const std::vector<StepReport>& a, const std::vector<StepReport>& b, double tolerance) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(b[i].full_loss, a[i].full_loss, tolerance * a[i].full_loss) << "step " << a[i].step;
    EXPECT_NEAR(b[i].reduced_loss, a[i].reduced_loss, tolerance * a[i].full_loss) << "step " << a[i].step;
    EXPECT_EQ(b[i].full_tokens, a[i].full_tokens);
  }
}

TEST_F(TrainerCudaTest, TwentyStepsFollowTheCpu) {
  // No ordering: units of nearly equal importance may change places by rounding.
  const auto settings = recipe({"elastic.ordering_period=0"});
  const auto cpu = train<float>(settings, {}, 20), full = train<float>(settings, kGpu, 20),
             half = train<BFloat16>(settings, kGpu, 20);
  expect_same_curve(cpu.reports, full.reports, 2e-3);
  expect_same_curve(cpu.reports, half.reports, 2e-2);
  for (const auto& [tier, loss] : cpu.losses) {
    EXPECT_NEAR(full.losses.at(tier), loss, 2e-3 * loss) << tier;
    EXPECT_NEAR(half.losses.at(tier), loss, 2e-2 * loss) << tier;
  }
}

TEST_F(TrainerCudaTest, ResumingAndRepeatingChangeNoBit) {
  const auto straight = train<BFloat16>(recipe(), kGpu, 12), again = train<BFloat16>(recipe(), kGpu, 12);
  EXPECT_TRUE(same_bits(straight.end.weights, again.end.weights));
  const auto part = train<BFloat16>(recipe(), kGpu, 7), rest = train<BFloat16>(recipe(), kGpu, 5, &part.end);
  EXPECT_TRUE(same_bits(straight.end.weights, rest.end.weights));
  EXPECT_TRUE(same_bits(straight.end.first, rest.end.first));
  EXPECT_TRUE(same_bits(straight.end.second, rest.end.second));
  EXPECT_EQ(straight.end.squares, rest.end.squares);
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
