#include "essh/train/run.h"

#include <gtest/gtest.h>

#include <sstream>

#include "essh/base/file.h"
#include "essh/base/json.h"
#include "essh/base/sha256.h"
#include "essh/store/manifest.h"
#include "essh/store/model_folder.h"
#include "essh/store/run_folder.h"
#include "essh/train/run_identity.h"
#include "tests/train/trainer_fixture.h"

namespace essh {
namespace {

// Whole runs and their folders.
struct RunTest : TrainerTest {
  fs::path run;
  fs::path from = fs::current_path();
  Stream stream = cpu_stream(2);

  void SetUp() override {
    TrainerTest::SetUp();
    run = folder / "run";
  }
  void TearDown() override {
    testing::fail_io_call(0);
    fs::current_path(from);
    TrainerTest::TearDown();
  }

  // The message of the Error that the action throws; "interrupted" for a requested stop, "done" if nothing is thrown.
  template <class Action>
  static std::string outcome(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Interrupted ? "interrupted" : error.what();
    }
    return "done";
  }
  std::string train(const Recipe& settings, RunOptions options = {}) {
    return outcome([&] { run_training(settings, run, stream, options); });
  }
  std::string refine(std::vector<std::string> settings = {}, RunOptions options = {}) {
    return outcome([&] { run_refinement(run, settings, stream, options); });
  }
  fs::path checkpoint(Index step) const { return checkpoint_folder(run / "checkpoints", step); }
  static void damage(const fs::path& checkpoint) { fs::resize_file(checkpoint / "state.safetensors", 1000); }
  std::string model_of_unbroken_run() {
    run_training(recipe(), folder / "unbroken", stream);
    return model_hash(folder / "unbroken" / "pretrained");
  }
  std::string text(const fs::path& path) { return read_text(path, 1u << 20); }
  // Edits trainer.json of a checkpoint and updates its hashes.
  template <class Edit>
  static void edit(const fs::path& checkpoint, const Edit& change) {
    auto header = read_json(checkpoint / "trainer.json");
    change(header);
    write_durably(checkpoint / "trainer.json", to_text(header, 2));
    write_manifest(checkpoint);
  }
};

// Fault T3: damaged checkpoints.
TEST_F(RunTest, DamagedCheckpointsAreSetAsideAndNotCountedAsKept) {
  const auto expected = model_of_unbroken_run();
  const auto settings = recipe({"run.keep=3"});
  ASSERT_EQ(train(settings, {.stop_after = 12}), "interrupted");
  ASSERT_EQ(checkpoint_steps(run / "checkpoints"), (std::vector<Index>{4, 8, 12}));
  damage(checkpoint(8));
  damage(checkpoint(12));
  ASSERT_EQ(train(settings, {.stop_after = 4}), "interrupted");
  EXPECT_EQ(checkpoint_steps(run / "checkpoints"), (std::vector<Index>{4, 8})) << "it goes on after step 4";
  EXPECT_TRUE(fs::exists(run / "checkpoints" / "damaged-step-00000012"));

  // A damaged checkpoint is detected before an intact one is removed in its favour.
  ASSERT_EQ(train(settings, {.stop_after = 8}), "interrupted");
  damage(checkpoint(12));
  ASSERT_EQ(train(settings, {.stop_after = 4}), "interrupted");
  EXPECT_EQ(checkpoint_steps(run / "checkpoints"), (std::vector<Index>{8, 16, 20}));
  EXPECT_EQ(train(settings), "done");
  EXPECT_EQ(model_hash(run / "pretrained"), expected);
}

TEST_F(RunTest, ARunWithoutAWholeCheckpointStartsOverOnlyWhenAsked) {
  ASSERT_EQ(train(recipe(), {.stop_after = 8}), "interrupted");
  damage(checkpoint(4));
  // A manifest that does not cover the weights proves nothing.
  write_durably(checkpoint(8) / kManifestName, sha256_of_file(checkpoint(8) / "config.json") + "  config.json\n");
  const auto metrics = text(run / "metrics.jsonl");
  for (int again = 0; again < 2; ++again) {
    EXPECT_NE(train(recipe()).find("restart"), std::string::npos);
    EXPECT_EQ(text(run / "metrics.jsonl"), metrics);
  }
  EXPECT_EQ(train(recipe(), {.restart = true}), "done");
  EXPECT_EQ(text(run / "metrics.jsonl.1"), metrics);
  EXPECT_TRUE(fs::exists(run / "checkpoints.1" / "damaged-step-00000008"));
  EXPECT_EQ(model_hash(run / "pretrained"), model_of_unbroken_run());

  // A finished run without checkpoints is not repeated either.
  fs::remove_all(run / "checkpoints");
  EXPECT_NE(train(recipe()).find("restart"), std::string::npos);
  EXPECT_EQ(train(recipe({"run.steps=4"}), {.restart = true}), "done") << "another recipe, in a run of its own";
  EXPECT_TRUE(fs::exists(run / "pretrained.2"));
}

// Fault T7: other data under the same name.
TEST_F(RunTest, TheDataOfARunDoesNotDependOnWhereACommandIsCalled) {
  auto settings = recipe();
  const auto absolute = settings.data.path;
  fs::current_path(folder);
  fs::create_directories("deep/er");
  fs::create_directory_symlink("deep/er", "link");
  fs::create_directory_symlink(absolute, "deep/data");
  for (const auto& path : {std::string("data/"), std::string("./data"), absolute, std::string("link/../data")}) {
    settings.data.path = path;
    EXPECT_EQ(train(settings, {.stop_after = 4}), "interrupted") << path;
  }
  EXPECT_NE(text(run / "recipe.yaml").find("path: \"" + absolute + "\""), std::string::npos);
  settings.data.path = absolute;
  ASSERT_EQ(train(settings), "done");

  // In another working directory, a folder of the same name holds other data.
  const auto elsewhere = folder / "elsewhere";
  fs::create_directories(elsewhere);
  prepare_data("some other text. ", elsewhere / "data");
  fs::current_path(elsewhere);
  ASSERT_EQ(refine({}, {.stop_after = 2}), "interrupted");
  const auto position = run / "refine-checkpoints" / "step-00000002" / "trainer.json";
  EXPECT_EQ(read_json(position).at("data"), TrainingData(recipe().data).fingerprint());

  // A recipe with a relative path of data.
  auto yaml = text(run / "recipe.yaml");
  yaml.replace(yaml.find(absolute), absolute.size(), "data");
  write_durably(run / "recipe.yaml", yaml);
  EXPECT_NE(refine().find("not what the run was pretrained on"), std::string::npos);
  fs::remove(run / "run.json");  // without run.json, the checkpoints decide
  EXPECT_NE(refine().find("not what the run was pretrained on"), std::string::npos);
}

TEST_F(RunTest, MovedDataIsFoundAndOtherDataRefused) {
  ASSERT_EQ(train(recipe(), {.stop_after = 4}), "interrupted");
  fs::rename(folder / "data", folder / "moved");
  auto settings = recipe();
  settings.data.path = (folder / "moved").string();
  EXPECT_EQ(train(settings, {.stop_after = 4}), "interrupted");
  EXPECT_NE(text(run / "recipe.yaml").find("moved"), std::string::npos);
  prepare_data("some other text. ", folder / "data");
  EXPECT_NE(train(recipe()).find("other data"), std::string::npos);
}

TEST_F(RunTest, ACheckpointBelongsToOneRunAndOneRecipe) {
  ASSERT_EQ(train(recipe(), {.stop_after = 8}), "interrupted");
  const auto other = folder / "other";
  EXPECT_EQ(outcome([&] { run_training(recipe(), other, stream, {.stop_after = 12}); }), "interrupted");

  // Copied into a folder with a run, and into a new one.
  fs::copy(checkpoint_folder(other / "checkpoints", 12), checkpoint(12), fs::copy_options::recursive);
  EXPECT_NE(train(recipe()).find("of another run"), std::string::npos);
  fs::remove_all(checkpoint(12));
  const auto fresh = folder / "fresh";
  fs::create_directories(fresh / "checkpoints");
  fs::copy(checkpoint(8), checkpoint_folder(fresh / "checkpoints", 8), fs::copy_options::recursive);
  EXPECT_NE(outcome([&] { run_training(recipe(), fresh, stream); }).find("of another run"), std::string::npos);

  // The recipe in the checkpoint is compared even without recipe.yaml.
  fs::remove(run / "recipe.yaml");
  EXPECT_NE(train(recipe({"run.seed=2"})).find("run.seed was 1 and is 2"), std::string::npos);
  EXPECT_NE(train(recipe({"run.seed=2"})).find("run.seed"), std::string::npos) << "nor what that has written";
  fs::remove(run / "recipe.yaml");
  EXPECT_EQ(train(recipe(), {.stop_after = 4}), "interrupted");
  EXPECT_TRUE(fs::exists(run / "recipe.yaml"));
}

TEST_F(RunTest, TheResidualsTypeBelongsToTheModel) {
  const auto settings = recipe({"model.residual_in_fp32=false"});
  ASSERT_EQ(train(settings, {.stop_after = 10}), "interrupted");
  EXPECT_FALSE(read_config(checkpoint(10)).residual_in_fp32);
  EXPECT_NE(train(recipe()).find("model.residual_in_fp32"), std::string::npos) << "a run keeps its residual";
  ASSERT_EQ(train(settings), "done");
  EXPECT_FALSE(read_config(run / "pretrained").residual_in_fp32);
  ASSERT_EQ(refine(), "done");
  EXPECT_FALSE(read_config(run / "refined").residual_in_fp32) << "refinement goes on with the model's own";
  EXPECT_NE(model_hash(run / "pretrained"), model_of_unbroken_run()) << "the hash covers the config";
}

TEST_F(RunTest, ARunFromBeforeIdsGoesOn) {
  ASSERT_EQ(train(recipe(), {.stop_after = 8}), "interrupted");
  for (const auto step : checkpoint_steps(run / "checkpoints"))
    edit(checkpoint(step), [](Json& header) { header.erase("run"); });
  fs::remove(run / "run.json");
  EXPECT_EQ(train(recipe()), "done");
  EXPECT_EQ(model_hash(run / "pretrained"), model_of_unbroken_run());
}

// Fault T2: a disk that is full.
TEST_F(RunTest, AFailedWriteCostsACheckpointAndNotTheRun) {
  const auto settings = recipe({"run.steps=6", "run.checkpoint_every=2", "run.validate_every=0"});
  testing::fail_io_call(0);
  ASSERT_EQ(train(settings), "done");
  const auto expected = model_hash(run / "pretrained");
  const auto calls = testing::fail_io_call(0);
  int failed_checkpoints = 0;
  for (std::uint64_t k = 1; k <= calls; k += std::max<std::uint64_t>(1, calls / 10)) {
    fs::remove_all(run);
    testing::fail_io_call(k);
    const auto first = train(settings);
    testing::fail_io_call(0);
    if (first == "done") {
      failed_checkpoints += text(run / "metrics.jsonl").find("checkpoint_failed") != std::string::npos;
    } else {
      EXPECT_EQ(train(settings), "done") << k << ", after: " << first;
    }
    EXPECT_EQ(model_hash(run / "pretrained"), expected) << k;
  }
  EXPECT_GE(failed_checkpoints, 2) << "the fault never met a checkpoint: the test proves nothing";
}

// Fault T8: two processes in one run.
TEST_F(RunTest, AFolderHasOneRunAtATime) {
  fs::create_directories(run);
  const FileLock held(run / kRunLock);
  EXPECT_NE(train(recipe()).find("in use by another process"), std::string::npos);
}

}  // namespace
}  // namespace essh
