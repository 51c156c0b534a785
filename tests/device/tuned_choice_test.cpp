#include "essh/device/tuned_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "essh/base/error.h"

namespace essh {
namespace {

constexpr Index kCandidates[] = {128, 32, 64, 256};

// A kernel whose cost and results are given, not measured.
struct FakeKernel {
  std::map<Index, double> cost = {{128, 10}, {32, 12}, {64, 8}, {256, 9}};
  std::map<Index, std::uint64_t> results = {};  // others give 7
  std::vector<Index> launches = {};

  Trial operator()(Index candidate) {
    launches.push_back(candidate);
    const auto other = results.find(candidate);
    return {.fingerprint = other == results.end() ? 7 : other->second, .cost = cost.at(candidate)};
  }
  Index choose(TunedChoices& choices, double least_gain = 0.02) {
    return tuned_choice(
        choices, "fake 8x64", kCandidates, [this](Index candidate) { return (*this)(candidate); }, least_gain);
  }
};

TEST(TunedChoice, TakesTheFastestAndKeepsIt) {
  TunedChoices choices;
  FakeKernel kernel;
  EXPECT_EQ(kernel.choose(choices), 64);
  EXPECT_EQ(choices, (TunedChoices{{"fake 8x64", "64"}}));
  EXPECT_EQ(kernel.launches.size() % std::size(kCandidates), 0u);
  for (std::size_t i = 0; i < kernel.launches.size(); ++i)
    EXPECT_EQ(kernel.launches[i], kCandidates[i % std::size(kCandidates)]) << "rounds alternate";
  const auto before = kernel.launches.size();
  EXPECT_EQ(kernel.choose(choices), 64);
  EXPECT_EQ(kernel.launches.size(), before) << "a stored choice needs no trial";
}

TEST(TunedChoice, TheLowestCostOfTheRoundsCounts) {
  TunedChoices choices;
  FakeKernel kernel;
  std::map<Index, int> rounds;
  // One slow round of the fastest, as if another program had used the GPU.
  const auto choice = tuned_choice(choices, "fake", kCandidates, [&](Index candidate) {
    auto trial = kernel(candidate);
    if (candidate == 64 && rounds[candidate]++ == 1) trial.cost = 100;
    return trial;
  });
  EXPECT_EQ(choice, 64);
}

TEST(TunedChoice, TheDefaultStaysWithoutAClearGain) {
  TunedChoices choices;
  FakeKernel kernel{.cost = {{128, 10}, {32, 12}, {64, 9.9}, {256, 10}}};
  EXPECT_EQ(kernel.choose(choices), 128);
  EXPECT_EQ(choices["fake 8x64"], "128");
  choices.clear();
  EXPECT_EQ(kernel.choose(choices, 0.005), 64);
}

TEST(TunedChoice, RefusesOtherResultsAndSaysSo) {
  TunedChoices choices;
  FakeKernel kernel{.results = {{64, 8}}};
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(kernel.choose(choices), 256) << "the fastest of the right ones";
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("fake 8x64: 64 is not used"), std::string::npos) << said;
  EXPECT_EQ(std::ranges::count(kernel.launches, 64), 1) << "not tried again";
}

TEST(TunedChoice, RefusesACandidateThatFails) {
  TunedChoices choices;
  FakeKernel kernel;
  ::testing::internal::CaptureStderr();
  const auto choice = tuned_choice(choices, "fake", kCandidates, [&](Index candidate) {
    if (candidate == 64) fail(ErrorKind::OutOfMemory, "no room");
    return kernel(candidate);
  });
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("no room"), std::string::npos);
  EXPECT_EQ(choice, 256);
  EXPECT_THROW(tuned_choice(choices, "other", kCandidates,
                            [](Index) -> Trial { fail(ErrorKind::OutOfMemory, "no room for the default"); }),
               Error);
  EXPECT_FALSE(choices.contains("other"));
}

// A choice of another version of the program.
TEST(TunedChoice, AStoredChoiceThatIsNoCandidateIsReplaced) {
  for (const char* stored : {"96", "64 ", "", "sixty-four"}) {
    TunedChoices choices{{"fake 8x64", stored}};
    FakeKernel kernel;
    EXPECT_EQ(kernel.choose(choices), 64) << stored;
    EXPECT_EQ(choices["fake 8x64"], "64");
    EXPECT_FALSE(kernel.launches.empty());
  }
}

}  // namespace
}  // namespace essh
