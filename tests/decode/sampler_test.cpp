#include "essh/decode/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "essh/base/error.h"

namespace essh {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, -INFINITY, NAN, 0.0f};

std::map<std::int32_t, int> draws(const SamplingOptions& options, int count = 20000) {
  Sampler sampler(options);
  std::map<std::int32_t, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sampler.draw(kLogits)];
  return seen;
}

TEST(Sampler, GreedyTakesTheBestAndTheSmallerOfEquals) {
  EXPECT_EQ(Sampler({}).draw(kLogits), 1);
  const std::vector<float> equal = {0.5f, 2.0f, 2.0f};
  EXPECT_EQ(Sampler({}).draw(equal), 1);
}

TEST(Sampler, GoesOnFromAState) {
  const SamplingOptions options{.temperature = 1, .repetition_penalty = 2, .seed = 3};
  Sampler whole(options), resumed(options), other({.temperature = 1, .seed = 4});
  for (int i = 0; i < 7; ++i) whole.see(whole.draw(kLogits));
  const auto state = whole.state();
  EXPECT_EQ(state.recent.size(), 7u);
  resumed.resume(state);
  other.resume(state);
  EXPECT_EQ(other.state().position, 0u) << "another seed begins its own numbers";
  for (int i = 0; i < 50; ++i) {
    const auto token = whole.draw(kLogits);
    EXPECT_EQ(resumed.draw(kLogits), token);
    whole.see(token);
    resumed.see(token);
  }
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const auto seen = draws({.temperature = 2});
  double total = 0;
  for (const int i : {0, 1, 2, 5}) total += std::exp(kLogits[static_cast<std::size_t>(i)] / 2);
  for (const int i : {0, 1, 2, 5})
    EXPECT_NEAR(seen.at(i) / 20000.0, std::exp(kLogits[static_cast<std::size_t>(i)] / 2) / total, 0.015);
  EXPECT_EQ(seen.size(), 4u);
}

TEST(Sampler, FiltersKeepTheMostLikely) {
  EXPECT_EQ(draws({.temperature = 1, .top_k = 2}).size(), 2u);
  EXPECT_EQ(draws({.temperature = 1, .top_p = 0.5}).size(), 1u);
  EXPECT_EQ(draws({.temperature = 1, .top_p = 0.9}).size(), 3u);
  EXPECT_EQ(draws({.temperature = 1, .top_p = 0}).size(), 1u);
  EXPECT_EQ(draws({.temperature = 1, .min_p = 0.2}).size(), 2u);  // e^-1 is kept, e^-2 is not
}

// Shares equal the frequencies of draws and are ordered by token.
TEST(Sampler, DistributionIsWhatIsDrawnFrom) {
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 2, .top_k = 3},
        SamplingOptions{.temperature = 1, .top_p = 0.9}, SamplingOptions{.temperature = 1.5, .min_p = 0.2},
        SamplingOptions{.temperature = 1, .repetition_penalty = 3}}) {
    Sampler sampler(options);
    sampler.see(1);
    const auto shares = sampler.distribution(kLogits);
    EXPECT_TRUE(std::ranges::is_sorted(shares, {}, &TokenShare::token));
    std::map<std::int32_t, int> seen;
    for (int i = 0; i < 20000; ++i) ++seen[sampler.draw(kLogits)];
    EXPECT_EQ(seen.size(), shares.size());
    double sum = 0;
    for (const auto& one : shares) {
      sum += one.share;
      EXPECT_NEAR(seen[one.token] / 20000.0, one.share, 0.015) << one.token;
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

// `ahead` tokens count as seen, within the window.
TEST(Sampler, DistributionLooksAhead) {
  const SamplingOptions options{.temperature = 1, .repetition_penalty = 3, .repetition_window = 2};
  Sampler sampler(options), other(options);
  const std::vector<std::int32_t> ahead = {2, 5};
  for (const std::int32_t token : {0, 1}) sampler.see(token);
  for (const std::int32_t token : {0, 1, 2, 5}) other.see(token);
  const auto found = sampler.distribution(kLogits, ahead), expected = other.distribution(kLogits);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].share, expected[i].share);
  EXPECT_NE(found[0].share, sampler.distribution(kLogits)[0].share);
}

// The penalty and the state see the last tokens of the window at any length.
TEST(Sampler, RemembersTheWindow) {
  const SamplingOptions options{.temperature = 1, .repetition_penalty = 3, .repetition_window = 3};
  Sampler sampler(options);
  std::vector<std::int32_t> seen;
  for (std::int32_t i = 0; i < 20; ++i) {
    seen.push_back(i * i % 6);
    sampler.see(seen.back());
    const auto last = std::span(seen).last(std::min<std::size_t>(3, seen.size()));
    EXPECT_EQ(sampler.state().recent, std::vector<std::int32_t>(last.begin(), last.end())) << i;
    Sampler fresh(options);
    for (const auto token : last) fresh.see(token);
    const auto found = sampler.distribution(kLogits), expected = fresh.distribution(kLogits);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t k = 0; k < found.size(); ++k) EXPECT_EQ(found[k].share, expected[k].share) << i;
  }
}

TEST(Sampler, SeedDecidesTheSequence) {
  Sampler a({.temperature = 1, .seed = 4}), b({.temperature = 1, .seed = 4}), c({.temperature = 1, .seed = 5});
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const auto x = a.draw(kLogits);
    EXPECT_EQ(x, b.draw(kLogits));
    different += x != c.draw(kLogits);
  }
  EXPECT_GT(different, 0);
}

// The definition: sort all tokens, filter the tail, walk down the list.
std::int32_t draw_sorted(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  std::vector<std::pair<double, std::int32_t>> list;
  for (std::size_t i = 0; i < logits.size(); ++i)
    list.emplace_back(-static_cast<double>(logits[i]), static_cast<std::int32_t>(i));
  std::sort(list.begin(), list.end());
  if (options.top_k > 0) list.resize(std::min(list.size(), static_cast<std::size_t>(options.top_k)));
  const double best = list.front().first;
  double total = 0, sum = 0, mass = 0;
  for (auto& [weight, token] : list) total += weight = std::exp((best - weight) / options.temperature);
  std::size_t kept = list.size();
  if (options.top_p < 1) {
    for (kept = 0; kept < list.size() && (kept == 0 || sum < options.top_p * total); ++kept) sum += list[kept].first;
  }
  while (kept > 1 && list[kept - 1].first < options.min_p) --kept;
  for (std::size_t i = 0; i < kept; ++i) mass += list[i].first;
  double point = uniform * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    point -= list[i].first;
    if (point < 0) return list[i].second;
  }
  return list[kept - 1].second;
}

TEST(Sampler, SelectsWhatSortingWouldDraw) {
  Rng rng(6);
  std::vector<float> logits(1000);
  for (const double spread : {0.0, 1.0, 8.0}) {
    for (auto& logit : logits) logit = static_cast<float>(spread * rng.normal());
    for (std::size_t i = 0; i < logits.size(); i += 3) logits[i] = logits[i / 2];  // ties
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 0.7, .top_k = 50},
          SamplingOptions{.temperature = 1, .top_k = 1}, SamplingOptions{.temperature = 1, .top_p = 0.9},
          SamplingOptions{.temperature = 2, .top_p = 0.3, .min_p = 0.01},
          SamplingOptions{.temperature = 1, .top_k = 700, .top_p = 0.99, .min_p = 0.5},
          SamplingOptions{.temperature = 1, .top_p = 0}, SamplingOptions{.temperature = 1, .min_p = 1}}) {
      Sampler sampler(options);
      Rng numbers(options.seed, 0x5a3b1e);  // the sampler's seed and stream
      for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(sampler.draw(logits), draw_sorted(logits, options, numbers.uniform()))
            << "spread " << spread << ", top_k " << options.top_k << ", top_p " << options.top_p << ", draw " << i;
      }
    }
  }
}

// Draws recorded in double: the same seed gives the same text in every version.
TEST(Sampler, SeedsKeepTheirTexts) {
  Rng rng(11);
  std::vector<float> logits(500);
  for (auto& logit : logits) logit = static_cast<float>(2 * rng.normal());
  const std::vector<std::pair<SamplingOptions, std::vector<std::int32_t>>> texts = {
      {{.temperature = 1, .seed = 1}, {479, 85, 8, 480, 18, 8, 479, 345, 44, 111, 65, 398, 40, 481, 314, 8}},
      {{.temperature = 0.7, .top_k = 40, .top_p = 0.95, .seed = 2},
       {8, 478, 479, 481, 8, 141, 325, 479, 141, 479, 8, 8, 55, 398, 479, 479}},
      {{.temperature = 1.3, .top_p = 0.8, .min_p = 0.02, .repetition_penalty = 1.3, .repetition_window = 16, .seed = 3},
       {398, 434, 383, 8, 67, 230, 479, 478, 351, 132, 55, 406, 130, 463, 164, 152}},
      {{.temperature = 0, .repetition_penalty = 2, .repetition_window = 8},
       {479, 8, 478, 128, 55, 398, 34, 67, 165, 479, 8, 478, 128, 55, 398, 34}}};
  for (const auto& [options, text] : texts) {
    Sampler sampler(options);
    std::vector<std::int32_t> drawn;
    while (drawn.size() < text.size()) {
      drawn.push_back(sampler.draw(logits));
      sampler.see(drawn.back());
    }
    EXPECT_EQ(drawn, text) << "seed " << options.seed;
  }
}

// A draw by plan() returns the token of draw() and leaves the sampler in the same state.
TEST(Sampler, PlansItsDraws) {
  Rng rng(4);
  std::vector<float> logits(300);
  for (auto& logit : logits) logit = static_cast<float>(2 * rng.normal());
  const std::vector<LogitChange> given = {
      {.token = 2, .bias = 3}, {.token = 5, .penalty = 1}, {.token = 299, .bias = 5}};
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{
        .temperature = temperature, .top_p = 0.95, .min_p = 0.001, .repetition_penalty = 1.5, .repetition_window = 20};
    Sampler draws(options), plans(options);
    for (int i = 0; i < 200; ++i) {
      // The list already holds the changes of another row.
      std::vector<LogitChange> list = {{.token = 7, .bias = 100}};
      const auto plan = plans.plan(given, list);
      EXPECT_EQ(plan.first_change, 1);
      const auto changes = std::span(list).subspan(1, static_cast<std::size_t>(plan.changes));
      for (std::size_t c = 1; c < changes.size(); ++c) ASSERT_LT(changes[c - 1].token, changes[c].token);
      std::vector<DrawCandidate> room(logits.size());
      const auto planned = draw_token(logits, plan, changes, room).token;
      const auto drawn = draws.draw(logits, given);
      draws.see(drawn);
      plans.drew(planned);
      ASSERT_EQ(planned, drawn) << "draw " << i;
      ASSERT_EQ(plans.state().position, draws.state().position);
      ASSERT_EQ(plans.state().recent, draws.state().recent);
    }
    EXPECT_EQ(draws.state().position, temperature == 0 ? 0u : 400u);
  }
}

TEST(Sampler, RepetitionPenaltyForgetsOutsideItsWindow) {
  Sampler sampler({.repetition_penalty = 4, .repetition_window = 2});
  sampler.see(1);
  EXPECT_EQ(sampler.draw(kLogits), 2);
  sampler.see(0);
  sampler.see(0);
  EXPECT_EQ(sampler.draw(kLogits), 1);
}

TEST(Sampler, NoFiniteLogitIsAnError) {
  const std::vector<float> bad = {NAN, -INFINITY};
  EXPECT_THROW(Sampler({}).draw(bad), Error);
}

}  // namespace
}  // namespace essh
