#include "essh/train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/store/folder_writer.h"
#include "essh/store/model_folder.h"
#include "essh/store/run_folder.h"
#include "essh/store/safetensors.h"
#include "essh/train/run.h"
#include "tests/train/trainer_fixture.h"

namespace essh {
namespace {

TEST_F(TrainerTest, StoppingAndResumingChangesNoBit) {
  const std::vector<std::vector<std::string>> arms = {
      {"elastic.sampling=fixed"},
      {"elastic.sampling=adaptive"},
      {"optimizer.algorithm=muon"},
      {"model.slopes=true"},
      {"optimizer.algorithm=muon", "model.slopes=true", "elastic.joint=true", "elastic.full_share=0.5"}};
  for (const auto& arm : arms) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(arm, " ")));
    auto settings = arm;
    settings.emplace_back("run.steps=40");
    Setup setup(recipe(settings), 2);
    auto straight = setup.trainer();
    while (!straight->finished()) straight->step();
    auto part = setup.trainer();
    for (int i = 0; i < 17; ++i) part->step();
    auto resumed = setup.trainer();
    resumed->resume(part->snapshot());
    while (!resumed->finished()) resumed->step();
    const auto a = straight->snapshot(), b = resumed->snapshot();
    EXPECT_TRUE(same_bits(a.weights, b.weights));
    EXPECT_TRUE(same_bits(a.states, b.states));
    EXPECT_EQ(a.squares, b.squares);
    EXPECT_EQ(a.position, b.position);
  }
}

// Calibration orders the units of a dense parent by squared activation times squared norm of the down column, over
// tokens of its own, and does not change the full model.
TEST_F(TrainerTest, CalibrationOrdersTheUnitsOfADenseParent) {
  Setup dense(recipe({"elastic.sampling=dense", "optimizer.rate=4e-3"}), 2);
  const auto parent = dense.trainer();
  while (!parent->finished()) parent->step();
  const auto before = parent->parameters();

  Setup setup(recipe({"elastic.calibration_tokens=2000"}), 2);
  const auto trainer = setup.trainer();
  trainer->start(before);
  const auto losses_before = trainer->validate();
  trainer->calibrate();
  const auto losses_after = trainer->validate();
  const auto after = trainer->parameters();
  EXPECT_NEAR(losses_after.at("T10"), losses_before.at("T10"), 2e-6 * losses_before.at("T10"));
  EXPECT_LT(losses_after.at("T4"), losses_before.at("T4")) << "a prefix now keeps what counts";
  EXPECT_EQ(trainer->step_count(), 0);
  EXPECT_EQ(trainer->position(), 0) << "training begins with its first sample";

  // Importance over the calibration tokens, in double.
  const Model<double> model(setup.config);
  Parameters<double> wide(setup.config);
  std::copy_n(after.data(), after.layout().size(), wide.data());
  const auto sequences = setup.data.training(setup.recipe.run.seed ^ 0xca11b8a7eULL);
  const Index units = setup.config.intermediate_size;
  std::vector<double> squares(static_cast<std::size_t>(2 * units));
  for (Index first = 0; first * 40 < 2000; first += 2) {
    const auto batch = read_batch(*sequences, first, 2);
    auto stream = cpu_stream(1);
    Arena arena(Device::Cpu);
    Pass pass{stream, arena, full_capacity(setup.config), batch.rows, batch.length};
    pass.ffn_squares = {squares.data(), 2, units, units};
    model.forward(pass, wide.weights(), {batch.inputs.data(), std::ssize(batch.inputs)}, nullptr);
  }
  for (Index layer = 0; layer < 2; ++layer) {
    const auto down = after.tensor(after.layout().find(layer, "mlp.down_proj.weight"));
    std::vector<double> importance;
    for (Index unit = 0; unit < units; ++unit) {
      double norm = 0;
      for (Index row = 0; row < setup.config.hidden_size; ++row) {
        const double value = down[static_cast<std::size_t>(row * units + unit)];
        norm += value * value;
      }
      importance.push_back(norm * squares[static_cast<std::size_t>(layer * units + unit)]);
    }
    for (std::size_t unit = 1; unit < importance.size(); ++unit)
      EXPECT_LE(importance[unit], importance[unit - 1] * (1 + 1e-4)) << layer << " " << unit;
    EXPECT_GT(importance.front(), 2 * importance.back());
  }

  // A unit moves as a whole: its row of gate, its row of up and its column of down.
  const auto& layout = before.layout();
  const auto gate = layout.find(0, "mlp.gate_proj.weight"), up = layout.find(0, "mlp.up_proj.weight"),
             down = layout.find(0, "mlp.down_proj.weight");
  const auto row = [&](const Parameters<float>& p, std::size_t tensor, Index unit) {
    const Index width = setup.config.hidden_size;
    std::vector<float> values;
    for (Index i = 0; i < width; ++i)
      values.push_back(
          p.tensor(tensor)[static_cast<std::size_t>(tensor == down ? i * units + unit : unit * width + i)]);
    return values;
  };
  Index moved = 0;
  for (Index unit = 0; unit < units; ++unit) {
    Index from = 0;
    while (from < units && row(before, gate, from) != row(after, gate, unit)) ++from;
    ASSERT_LT(from, units) << "every unit comes from somewhere";
    moved += from != unit;
    EXPECT_EQ(row(before, up, from), row(after, up, unit));
    EXPECT_EQ(row(before, down, from), row(after, down, unit));
  }
  EXPECT_GT(moved, units / 2);
}

TEST_F(TrainerTest, CalibrationNeedsAParent) {
  auto stream = cpu_stream(1);
  try {
    run_training(recipe({"elastic.calibration_tokens=2000"}), folder / "run", stream);
    FAIL() << "random units were ranked";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("set model.start"), std::string::npos) << error.what();
  }
}

TEST_F(TrainerTest, AGeneratedTaskIsLearntAndResumesBitByBit) {
  const std::vector<std::string> settings = {"data.path=''",      "data.task=mqar",      "data.context=24",
                                             "data.pairs=2",      "data.symbols=16",     "run.batch=16",
                                             "run.micro_batch=4", "optimizer.rate=6e-3", "run.steps=40"};
  Setup setup(recipe(settings), 2);
  auto straight = setup.trainer();
  const auto before = straight->validate();
  for (int i = 0; i < 21; ++i) straight->step();
  auto resumed = setup.trainer();
  resumed->resume(straight->snapshot());
  StepReport report;
  while (!straight->finished()) report = straight->step();
  while (!resumed->finished()) resumed->step();
  EXPECT_TRUE(same_bits(straight->snapshot().weights, resumed->snapshot().weights));
  EXPECT_EQ(report.full_tokens + report.reduced_tokens, 16 * 2) << "only questions count";
  for (const auto& [tier, loss] : straight->validate()) EXPECT_LT(loss, before.at(tier) - 0.4) << tier;

  auto other = settings;
  other.push_back("data.noise=false");
  Setup another(recipe(other), 1);
  EXPECT_THROW(another.trainer()->resume(straight->snapshot()), Error);
}

TEST_F(TrainerTest, LossFallsAtEveryTierAndRefinementGoesOn) {
  const auto settings = recipe({"run.steps=60", "optimizer.rate=6e-3"});
  const auto run = folder / "run";
  Setup setup(settings, 2);
  run_training(settings, run, setup.stream);
  auto fresh = setup.trainer();
  const auto before = fresh->validate();
  Parameters<float> trained = load_model(run / "pretrained").parameters;
  fresh->start(trained);
  const auto after = fresh->validate();
  for (const auto& [tier, loss] : before) EXPECT_LT(after.at(tier), loss - 1.0) << tier;
  run_refinement(run, {}, setup.stream);
  EXPECT_TRUE(fs::exists(run / "refined" / "model.safetensors"));
  EXPECT_EQ(model_of_run(run), run / "refined");
}

TEST_F(TrainerTest, AnInterruptedRunFolderEndsWithTheSameModel) {
  const auto settings = recipe();
  auto stream = cpu_stream(2);
  run_training(settings, folder / "whole", stream);
  for (int piece = 0;; ++piece) {
    ASSERT_LT(piece, 10);
    try {
      run_training(settings, folder / "pieces", stream, {.stop_after = 7});
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Interrupted);
    }
  }
  EXPECT_EQ(model_hash(folder / "whole" / "pretrained"), model_hash(folder / "pieces" / "pretrained"));
}

// Fault T2: a disk that is full.
TEST_F(TrainerTest, ADiskFullAtAnyMomentKeepsTheLastGoodCheckpoint) {
  Setup setup(recipe(), 1);
  auto trainer = setup.trainer();
  trainer->step();
  Checkpoints checkpoints(folder / "checkpoints", 1);
  checkpoints.save(trainer->snapshot());
  checkpoints.finish();
  trainer->step();
  testing::fail_io_call(0);
  for (std::uint64_t k = 1;; ++k) {
    testing::fail_io_call(k);
    bool failed = false;
    try {
      checkpoints.save(trainer->snapshot());
      checkpoints.finish();
    } catch (const Error&) {
      failed = true;
    }
    testing::fail_io_call(0);
    const auto newest = checkpoints.newest();
    ASSERT_TRUE(newest.has_value()) << "call " << k;
    EXPECT_GE(newest->step, 1);
    if (!failed) {
      EXPECT_EQ(newest->step, 2);
      break;
    }
    ASSERT_LT(k, 200u);
  }
}

TEST_F(TrainerTest, ACheckpointHoldsEveryTensorOfEveryState) {
  Setup setup(recipe(), 1);
  auto trainer = setup.trainer();
  for (int i = 0; i < 3; ++i) trainer->step();
  const auto saved = trainer->snapshot();
  Checkpoints checkpoints(folder / "checkpoints", 1);
  checkpoints.save(saved);
  checkpoints.finish();
  const auto file = SafetensorsFile::open(folder / "checkpoints" / "step-00000003" / "state.safetensors");
  const ParameterLayout layout(setup.config);
  EXPECT_EQ(file.tensors().size(), 3 * layout.tensors().size() + 1);
  for (const char* array : {"weights", "first", "second"}) {
    for (const auto& spec : layout.tensors()) {
      const auto* info = file.find(array + ("/" + spec.name));
      ASSERT_NE(info, nullptr) << array << " of " << spec.name;
      EXPECT_EQ(std::vector<Index>(info->shape.begin(), info->shape.end()), spec.shape());
    }
  }
  const auto read = checkpoints.newest();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->algorithm, "adamw");
  EXPECT_TRUE(same_bits(read->weights, saved.weights));
  EXPECT_TRUE(same_bits(read->states, saved.states));
}

// Flat arrays, without names of tensors or of the algorithm, remain readable.
TEST_F(TrainerTest, ACheckpointOfFlatArraysGoesOnBitByBit) {
  Setup setup(recipe(), 1);
  auto straight = setup.trainer();
  for (int i = 0; i < 5; ++i) straight->step();
  const auto s = straight->snapshot();
  const auto write = [&](const fs::path& target, const std::string& layout) {
    FolderWriter writer(target, ExistingFolder::Replace);
    const Json header = {{"stage", s.stage},   {"step", s.step},     {"position", s.position},
                         {"tokens", s.tokens}, {"validation", 0.0},  {"sampler", s.sampler},
                         {"data", s.data},     {"recipe", s.recipe}, {"layout", layout}};
    write_durably(writer.folder() / "trainer.json", to_text(header));
    write_durably(writer.folder() / "config.json", to_text(config_json(s.config)));
    const std::vector<std::uint64_t> flat = {s.weights.size()};
    SafetensorsWriter file(writer.folder() / "state.safetensors", {{"weights", DType::F32, flat},
                                                                   {"first", DType::F32, flat},
                                                                   {"second", DType::F32, flat},
                                                                   {"squares", DType::F64, {s.squares.size()}}});
    for (const auto& info : file.tensors()) {
      if (info.name == "squares")
        file.write_as<double>(info, s.squares);
      else
        file.write_as<float>(info, info.name == "weights" ? s.weights : s.states.at(info.name));
    }
    file.commit();
    writer.commit();
  };
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& spec : tensor_list(s.config)) {
    for (const char c : fmt::format("{} {} {}\n", spec.name, spec.rows, spec.cols))
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  write(folder / "flat", fmt::format("{:016x}", hash));
  auto resumed = setup.trainer();
  resumed->resume(read_checkpoint(folder / "flat"));
  for (int i = 0; i < 5; ++i) {
    straight->step();
    resumed->step();
  }
  const auto a = straight->snapshot(), b = resumed->snapshot();
  EXPECT_TRUE(same_bits(a.weights, b.weights));
  EXPECT_TRUE(same_bits(a.states, b.states));
  write(folder / "other", "0123456789abcdef");
  EXPECT_THROW(read_checkpoint(folder / "other"), Error);
}

TEST_F(TrainerTest, StatesOfAnotherAlgorithmAreRefused) {
  Setup setup(recipe(), 1);
  auto trainer = setup.trainer();
  auto snapshot = trainer->snapshot();
  snapshot.algorithm = "muon";
  try {
    trainer->resume(snapshot);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the checkpoint holds states of the optimizer muon, the recipe trains with adamw");
  }
}

// Fault T4: gradients that are not finite.
TEST_F(TrainerTest, NonFiniteGradientsNeverReachTheWeights) {
  for (const char* policy : {"stop", "skip"}) {
    Setup setup(recipe({std::string("run.nonfinite=") + policy}), 1);
    auto trainer = setup.trainer();
    Parameters<float> poisoned(setup.config);
    initialise(poisoned, setup.config, 1);
    poisoned.tensor(poisoned.layout().find(0, "mixer.out_proj.weight"))[3] = INFINITY;
    trainer->start(poisoned);
    const auto before = trainer->snapshot();
    if (std::string(policy) == "stop") {
      EXPECT_THROW(trainer->step(), Error);
    } else {
      EXPECT_TRUE(trainer->step().skipped);
    }
    EXPECT_TRUE(same_bits(trainer->snapshot().weights, before.weights));
    Checkpoints checkpoints(folder / "bad", 1);
    EXPECT_THROW(checkpoints.save(trainer->snapshot()), Error);
  }
}

TEST_F(TrainerTest, OtherDataOrAnotherRecipeIsRefused) {
  Setup setup(recipe(), 1);
  auto trainer = setup.trainer();
  auto snapshot = trainer->snapshot();
  snapshot.data = "other";
  EXPECT_THROW(trainer->resume(snapshot), Error);
  run_training(recipe({"run.steps=4"}), folder / "run", setup.stream);
  EXPECT_THROW(run_training(recipe({"run.steps=5"}), folder / "run", setup.stream), Error);
}

TEST_F(TrainerTest, AblationsKeepWhatTheyFreeze) {
  Setup setup(recipe({"model.clock=fixed", "model.gates=neutral"}), 1);
  auto trainer = setup.trainer();
  for (int i = 0; i < 3; ++i) trainer->step();
  const auto parameters = trainer->parameters();
  const auto& layout = parameters.layout();
  for (const char* name :
       {"mixer.clock_proj.weight", "mixer.write_proj.weight", "mixer.read_proj.weight", "mixer.write_proj.bias"}) {
    for (const float x : parameters.tensor(layout.find(0, name))) EXPECT_EQ(x, 0.0f) << name;
  }
  bool moved = false;
  for (const float x : parameters.tensor(layout.find(0, "mixer.clock_proj.bias"))) moved = moved || x != -3.0f;
  EXPECT_TRUE(moved) << "the clock's bias learns";
}

}  // namespace
}  // namespace essh
