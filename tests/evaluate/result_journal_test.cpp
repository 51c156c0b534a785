#include "essh/evaluate/result_journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "essh/base/log.h"
#include "essh/evaluate/length_sweep.h"
#include "essh/evaluate/perplexity.h"
#include "essh/evaluate/recall.h"
#include "tests/evaluate/small_engine.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

struct ResultJournalTest : TempFolderTest {
  std::filesystem::path file;
  Stream stream = cpu_stream(1);
  Engine engine{small_family(), stream};
  std::vector<Tier> tiers = {find_tier(engine.config(), "1x2"), find_tier(engine.config(), "full")};

  void SetUp() override {
    log::set_level(log::Level::Quiet);
    TempFolderTest::SetUp();
    file = folder / "journal.jsonl";
  }

  std::vector<std::string> lines() const {
    const auto text = read_text(file, 1 << 20);
    std::vector<std::string> found;
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      found.push_back(text.substr(begin, end + 1 - begin));
    return found;
  }

  // `measure` returns the figures of a measurement with a journal, or without. They must be equal to the last bit
  // without a journal, with a new one, and after a stop at any line, in the middle of the next one.
  void check_resumes(const std::function<std::vector<double>(ResultJournal*)>& measure, std::size_t passes) {
    const auto expected = measure(nullptr);
    const auto with_journal = [&] {
      ResultJournal journal(file);
      return measure(&journal);
    };
    EXPECT_EQ(with_journal(), expected);
    const auto all = lines();
    ASSERT_EQ(all.size(), passes);
    for (std::size_t kept = 0; kept <= passes; ++kept) {
      std::string text;
      for (std::size_t i = 0; i < kept; ++i) text += all[i];
      if (kept < passes) text += all[kept].substr(0, all[kept].size() / 2);
      write_durably(file, text);
      EXPECT_EQ(with_journal(), expected) << kept;
      EXPECT_EQ(lines().size(), passes) << kept;
    }
    // Kept results are not measured again: a changed one changes the figures.
    auto changed = parse_json(all[0], "line 1");
    changed["result"][0] = changed["result"][0].get<double>() + 1;
    std::string text = to_text(changed) + "\n";
    for (std::size_t i = 1; i < passes; ++i) text += all[i];
    write_durably(file, text);
    EXPECT_NE(with_journal(), expected);
    changed["result"] = Json::array({1, "two"});
    write_durably(file, to_text(changed) + "\n");
    EXPECT_NE(message_of(with_journal).find("name another --journal"), std::string::npos);
  }

  std::vector<double> perplexity(const EvaluationText& text, PerplexityOptions options, ResultJournal* journal) {
    options.tiers = tiers;
    options.journal = journal;
    std::vector<double> figures;
    const auto report = measure_perplexity(engine, text, options);
    EXPECT_GE(report.seconds, report.forward_seconds);
    EXPECT_GT(report.forward_seconds, 0);
    for (const auto& tier : report.tiers) figures.push_back(tier.nll);
    return figures;
  }
};

TEST_F(ResultJournalTest, PerplexityResumes) {
  const auto text = EvaluationText::from_tokens(random_tokens(150, engine.config().vocab_size, 5), "random");
  // 8 windows, or 7 disjoint ones, three in a pass.
  for (const bool disjoint : {false, true}) {
    std::filesystem::remove(file);
    check_resumes(
        [&](ResultJournal* journal) {
          return perplexity(text, {.context = 18, .batch = 3, .disjoint = disjoint}, journal);
        },
        6);
  }
}

TEST_F(ResultJournalTest, WholeDocumentsResume) {
  auto tokens = random_tokens(150, engine.config().vocab_size, 5);
  const auto eos = static_cast<TokenId>(engine.config().eos_token_id);
  std::ranges::replace(tokens, eos, eos == 0 ? 1 : eos - 1);
  for (const std::size_t end : {20u, 90u, 99u}) tokens[end] = eos;
  const auto text = EvaluationText::from_tokens(tokens, "documents");
  check_resumes(
      [&](ResultJournal* journal) { return perplexity(text, {.context = 16, .batch = 2, .stateful = true}, journal); },
      4);
}

TEST_F(ResultJournalTest, LengthsAndPositionsResume) {
  const auto text = EvaluationText::from_tokens(random_tokens(9000, engine.config().vocab_size, 5), "random");
  // A pass has at most 8192 tokens: two passes at each length.
  check_resumes(
      [&](ResultJournal* journal) {
        const auto report = measure_lengths(
            engine, text, {.tiers = tiers, .lengths = {40, 300}, .windows = 1000, .bins = 3, .journal = journal});
        std::vector<double> figures;
        for (const auto& result : report.results) {
          figures.push_back(result.nll);
          figures.insert(figures.end(), result.curve.begin(), result.curve.end());
        }
        return figures;
      },
      8);
}

TEST_F(ResultJournalTest, RecallResumes) {
  const SyntheticTask task({.name = "palindrome", .length = 60, .symbols = 3});
  check_resumes(
      [&](ResultJournal* journal) {
        const auto report =
            measure_recall(engine, task, {.tiers = tiers, .samples = 300, .seed = 4, .journal = journal});
        std::vector<double> figures;
        for (const auto& tier : report.tiers) figures.insert(figures.end(), {tier.accuracy, tier.complete, tier.nll});
        return figures;
      },
      6);
}

TEST_F(ResultJournalTest, ResultsOfOtherModelsDataAndOptionsAreNotUsed) {
  const auto text = EvaluationText::from_tokens(random_tokens(60, engine.config().vocab_size, 5), "random");
  const auto other = EvaluationText::from_tokens(random_tokens(60, engine.config().vocab_size, 6), "random");
  const SyntheticTask task({.name = "palindrome", .length = 60, .symbols = 3});
  ResultJournal journal(file);
  std::size_t before = 0;
  const auto measures = [&](const char* what, std::size_t expected) {
    EXPECT_EQ(lines().size() - before, expected) << what;
    before = lines().size();
  };
  const PerplexityOptions options{.context = 8, .batch = 100};
  perplexity(text, options, &journal);
  measures("a pass for each tier", 2);
  perplexity(text, options, &journal);
  measures("the same", 0);
  perplexity(other, options, &journal);
  measures("other data", 2);
  perplexity(text, {.context = 9, .batch = 100}, &journal);
  measures("another context", 2);
  perplexity(text, {.context = 8, .batch = 100, .disjoint = true}, &journal);
  measures("disjoint windows", 2);
  perplexity(text, {.context = 8, .batch = 100, .stateful = true}, &journal);
  measures("whole documents", 2);
  measure_lengths(engine, text, {.tiers = tiers, .lengths = {8}, .bins = 4, .journal = &journal});
  measures("lengths", 2);
  measure_lengths(engine, text, {.tiers = tiers, .lengths = {8}, .bins = 2, .journal = &journal});
  measures("other bins", 2);
  measure_recall(engine, task, {.tiers = tiers, .samples = 3, .journal = &journal});
  measures("recall", 2);
  measure_recall(engine, task, {.tiers = tiers, .samples = 3, .seed = 1, .journal = &journal});
  measures("another seed", 2);
  measure_recall(engine, SyntheticTask({.name = "palindrome", .length = 58, .symbols = 3}),
                 {.tiers = tiers, .samples = 3, .journal = &journal});
  measures("another length of the task", 2);
  auto config = small_config();
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3);
  Engine same_weights(StoredModel(std::move(model), "another hash"), stream);
  measure_recall(same_weights, task, {.tiers = tiers, .samples = 3, .journal = &journal});
  measures("another model", 2);
}

TEST_F(ResultJournalTest, NumbersThatAreNotFiniteAreNotKept) {
  ResultJournal journal(file);
  const auto nan = [] { return std::vector{std::numeric_limits<double>::quiet_NaN()}; };
  EXPECT_TRUE(std::isnan(kept_or_measured(&journal, "key", 1, nan)[0]));
  EXPECT_EQ(kept_or_measured(&journal, "key", 1, [] { return std::vector{2.0}; })[0], 2);
  EXPECT_EQ(kept_or_measured(&journal, "key", 1, nan)[0], 2);
  EXPECT_EQ(lines().size(), 1u);
}

}  // namespace
}  // namespace essh
