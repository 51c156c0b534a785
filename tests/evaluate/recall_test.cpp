#include "essh/evaluate/recall.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "essh/base/json.h"
#include "essh/decode/session.h"
#include "essh/evaluate/tier_choice.h"
#include "tests/evaluate/small_engine.h"

namespace essh {
namespace {

// Compared with a count from the logits of every position, one sequence at a time.
TEST(Recall, CountsWhatTheLogitsSay) {
  auto stream = cpu_stream(1);
  Engine engine(small_family(), stream);
  const SyntheticTask task({.name = "palindrome", .length = 60, .symbols = 3});
  ASSERT_LE(task.vocab_size(), engine.config().vocab_size);
  const auto tiers = choose_tiers({}, engine.config(), {"all"});
  const Index samples = 140;  // more than one pass
  const auto report = measure_recall(engine, task, {.tiers = tiers, .samples = samples, .seed = 4});
  ASSERT_EQ(report.tiers.size(), tiers.size());
  EXPECT_EQ(report.questions, samples * 29);
  EXPECT_DOUBLE_EQ(report.chance, 1.0 / 3);
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    Index right = 0, complete = 0;
    double loss = 0;
    for (Index s = 0; s < samples; ++s) {
      std::vector<std::int32_t> inputs(60), targets(60);
      task.sample(SyntheticTask::Split::Validation, 4, s, inputs, targets);
      Index wrong = 0;
      all_logits(engine, tiers[t], inputs, LogitsPath::Parallel, [&](Index first, Matrix<const float> logits) {
        for (Index r = 0; r < logits.rows; ++r) {
          const auto target = targets[static_cast<std::size_t>(first + r)];
          if (target == kUnlabelled) continue;
          const auto* row = logits.row(r);
          const bool found = std::max_element(row, row + logits.cols) - row == target;
          right += found;
          wrong += !found;
          double sum = 0;
          for (Index c = 0; c < logits.cols; ++c) sum += std::exp(static_cast<double>(row[c]));
          loss += std::log(sum) - static_cast<double>(row[target]);
        }
      });
      complete += wrong == 0;
    }
    EXPECT_DOUBLE_EQ(report.tiers[t].accuracy, static_cast<double>(right) / static_cast<double>(report.questions));
    EXPECT_DOUBLE_EQ(report.tiers[t].complete, static_cast<double>(complete) / static_cast<double>(samples));
    const double nll = loss / static_cast<double>(report.questions);
    EXPECT_NEAR(report.tiers[t].nll, nll, 1e-5 * nll);
  }
  const auto json = to_json(report, "m", {});
  EXPECT_EQ(json["task"], "palindrome");
  EXPECT_FALSE(json.contains("pairs"));
  EXPECT_EQ(json["results"].size(), tiers.size());
  EXPECT_EQ(json["results"][0]["accuracy"], report.tiers[0].accuracy);
}

TEST(Recall, ATaskOfAnotherVocabularyIsRefused) {
  auto stream = cpu_stream(1);
  Engine engine(small_family(), stream);
  EXPECT_THROW(measure_recall(engine, SyntheticTask({.name = "mqar"}), {}), Error);
}

}  // namespace
}  // namespace essh
