#include "essh/data/synthetic_task.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "essh/base/error.h"
#include "essh/data/loader.h"

namespace essh {
namespace {

using Split = SyntheticTask::Split;
using Row = std::vector<std::int32_t>;

struct Sample {
  Row inputs, targets;
  bool operator==(const Sample&) const = default;
};

Sample sample(const SyntheticTask& task, std::int64_t index, Split split = Split::Train, std::uint64_t seed = 7) {
  const auto length = static_cast<std::size_t>(task.options().length);
  Sample s{Row(length), Row(length)};
  task.sample(split, seed, index, s.inputs, s.targets);
  return s;
}

std::string problem(const TaskOptions& options) {
  try {
    SyntheticTask task(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mqar, BindsKeysToValuesAndAsksForEachOnce) {
  for (const bool noise : {false, true}) {
    const SyntheticTask task({.name = "mqar", .length = 128, .symbols = 512, .pairs = 16, .noise = noise});
    EXPECT_EQ(task.vocab_size(), 512);
    for (std::int64_t index = 0; index < 200; ++index) {
      const auto s = sample(task, index);
      std::map<std::int32_t, std::int32_t> value_of;
      std::set<std::int32_t> values;
      for (std::size_t i = 0; i < 32; i += 2) {
        EXPECT_TRUE(s.inputs[i] >= 1 && s.inputs[i] < 256) << "a key";
        EXPECT_TRUE(s.inputs[i + 1] >= 256 && s.inputs[i + 1] < 512) << "a value";
        value_of[s.inputs[i]] = s.inputs[i + 1];
        values.insert(s.inputs[i + 1]);
      }
      EXPECT_EQ(value_of.size(), 16u);
      EXPECT_EQ(values.size(), 16u);
      std::set<std::int32_t> asked;
      for (std::size_t i = 0; i < 128; ++i) {
        if (s.targets[i] == kUnlabelled) {
          EXPECT_TRUE(noise || i < 32 || s.inputs[i] == 0) << "a filler";
          continue;
        }
        EXPECT_TRUE(i >= 32 && i % 2 == 0) << "queries stand at the head of a slot after the pairs";
        EXPECT_EQ(s.targets[i], value_of.at(s.inputs[i]));
        asked.insert(s.inputs[i]);
      }
      EXPECT_EQ(std::ssize(asked), task.labels());
    }
  }
}

// By definition, the first key takes slot g with probability (g + 1)^-0.99 / sum; the second draw excludes the slot of
// the first.
TEST(Mqar, QueriesCrowdAfterThePairsAsThePowerLawSays) {
  const SyntheticTask task({.name = "mqar", .length = 24, .symbols = 64, .pairs = 2, .noise = false});
  constexpr int kSlots = 10, kSamples = 40000;
  std::array<double, kSlots> weight{};
  double total = 0;
  for (int g = 0; g < kSlots; ++g) total += weight[static_cast<std::size_t>(g)] = std::pow(g + 1.0, -0.99);
  std::array<int, kSlots> first{}, second{};
  for (std::int64_t index = 0; index < kSamples; ++index) {
    const auto s = sample(task, index);
    for (std::size_t g = 0; g < kSlots; ++g) {
      if (s.targets[4 + 2 * g] == kUnlabelled) continue;
      ++(s.inputs[4 + 2 * g] == s.inputs[0] ? first : second)[g];
    }
  }
  for (std::size_t g = 0; g < kSlots; ++g) {
    const double p = weight[g] / total;
    double q = 0;
    for (std::size_t h = 0; h < kSlots; ++h) {
      if (h != g) q += weight[h] / total * weight[g] / (total - weight[h]);
    }
    EXPECT_NEAR(first[g] / double(kSamples), p, 5 * std::sqrt(p / kSamples)) << g;
    EXPECT_NEAR(second[g] / double(kSamples), q, 5 * std::sqrt(q / kSamples)) << g;
  }
}

TEST(Mqar, ThePapersLargestLoadFits) {
  const SyntheticTask task({.name = "mqar", .length = 256, .pairs = 64});
  EXPECT_EQ(task.vocab_size(), 8192);
  const auto s = sample(task, 0);
  for (std::size_t i = 128; i < 256; i += 2) EXPECT_NE(s.targets[i], kUnlabelled);
}

TEST(Palindrome, TheSecondHalfMirrorsTheFirst) {
  for (const std::int64_t length : {3, 4, 32, 33, 256}) {
    const SyntheticTask task({.name = "palindrome", .length = length});
    EXPECT_EQ(task.vocab_size(), 66);
    const auto s = sample(task, 5);
    const auto n = static_cast<std::size_t>(task.labels());
    EXPECT_EQ(s.inputs[0], 64);
    EXPECT_EQ(s.inputs[n + 1], 65);
    for (std::size_t i = 0; i < s.inputs.size(); ++i) {
      const bool asked = i > n && i <= 2 * n;
      EXPECT_EQ(s.targets[i], asked ? s.inputs[2 * n + 1 - i] : kUnlabelled) << length << " at " << i;
      EXPECT_TRUE(!asked || i + 1 == s.inputs.size() || s.inputs[i + 1] == s.targets[i]) << length << " at " << i;
    }
  }
}

TEST(SyntheticTask, ASampleDependsOnSeedSplitAndIndexAlone) {
  for (const char* name : {"mqar", "palindrome"}) {
    const SyntheticTask task({.name = name, .length = 64, .pairs = 8});
    EXPECT_EQ(sample(task, 3), sample(SyntheticTask(task.options()), 3));
    EXPECT_NE(sample(task, 3), sample(task, 4));
    EXPECT_NE(sample(task, 3), sample(task, 3, Split::Validation));
    EXPECT_NE(sample(task, 3), sample(task, 3, Split::Train, 8));
  }
}

TEST(SyntheticTask, RanksAndRowsSeeOneStream) {
  const TaskSequences sequences(SyntheticTask({.name = "mqar", .length = 64, .pairs = 8}), Split::Train, 3);
  const auto whole = read_batch(sequences, 100, 24);
  for (const int ranks : {1, 2, 3}) {
    std::map<std::int64_t, Row> inputs;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(sequences, {.rows = 4, .rank = rank, .ranks = ranks}, 100);
      while (loader.position() < 124) {
        auto batch = loader.next();
        inputs[batch.first_sample] = std::move(batch.inputs);
      }
    }
    Row joined;
    for (const auto& [first, rows] : inputs) joined.insert(joined.end(), rows.begin(), rows.end());
    EXPECT_EQ(joined, whole.inputs) << ranks;
  }
}

TEST(SyntheticTask, MistakesAreNamedWithARemedy) {
  EXPECT_EQ(problem({.name = "mqra"}),
            "no task is called \"mqra\", did you mean \"mqar\"? (there are mqar, palindrome)");
  EXPECT_EQ(problem({.name = "mqar", .length = 254}), "mqar: 64 pairs need an even length of at least 256, got 254");
  EXPECT_EQ(problem({.name = "mqar", .length = 257}), "mqar: 64 pairs need an even length of at least 256, got 257");
  EXPECT_EQ(problem({.name = "mqar", .symbols = 128}), "mqar: 64 pairs need at least 130 symbols, got 128");
  EXPECT_EQ(problem({.name = "palindrome", .length = 2}), "palindrome: length must be at least 3, got 2");
}

}  // namespace
}  // namespace essh
