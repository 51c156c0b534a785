#include "essh/kernels/draw_token.h"

#include <gtest/gtest.h>

#include <cstring>

#include "essh/device/cpu/stream.h"
#include "tests/kernels/draw_checks.h"
#include "tests/sanitized.h"

namespace essh {
namespace {

// Tokens that the filters keep of a row, best first.
std::vector<std::int32_t> kept(const std::vector<float>& logits, DrawOptions options,
                               const std::vector<LogitChange>& changes = {}) {
  if (options.temperature == 0) options.temperature = 1;
  std::vector<std::int32_t> tokens;
  for (const auto& candidate : reference::draw_candidates(logits, options, changes))
    tokens.push_back(token_of_key(candidate.key));
  return tokens;
}
using Tokens = std::vector<std::int32_t>;

TEST(DrawToken, KeysCarryTheirValues) {
  for (const float value : {-kDrawInfinity, -1e30f, -1.5f, -1e-40f, 0.0f, 1e-40f, 0.25f, 3.0f, kDrawInfinity}) {
    EXPECT_EQ(value_of_key(score_key(value, 7)), value);
    EXPECT_EQ(token_of_key(score_key(value, 7)), 7);
  }
  EXPECT_EQ(draw_key(-0.0f, 3), draw_key(0.0f, 3));
  EXPECT_EQ(draw_key(-kDrawInfinity, 3), 0u);
  EXPECT_EQ(draw_key(NAN, 3), 0u);
}

TEST(DrawToken, TargetsAreExactProducts) {
  EXPECT_EQ(draw_target(0, 5), 1u);
  EXPECT_EQ(draw_target(~std::uint64_t{0}, std::uint64_t{1} << 61), (std::uint64_t{1} << 61) - (1 << 8) + 1);
  EXPECT_EQ(draw_target(std::uint64_t{1} << 63, 7), 4u);
  EXPECT_EQ(draw_target(0xc000000000000000u, 0x0123456789abcdefu), 1 + 0x0123456789abcdefu / 4 * 3 + 2);
  EXPECT_EQ(top_p_target(0, 100), 1u);
  EXPECT_EQ(top_p_target(0.5, 101), 51u);
  EXPECT_EQ(top_p_target(std::nextafter(1.0, 0.0), (std::uint64_t{1} << 61) + 1),
            (std::uint64_t{1} << 61) + 1 - 256 - 1);
}

// With weights 1, 1/2, 1/4, 1/8 and temperature 1.
TEST(DrawToken, FiltersKeepWhatTheyShould) {
  const float two = std::log(2.0f);
  const std::vector<float> logits = {-two, NAN, 0, -3 * two, -kDrawInfinity, -2 * two};
  EXPECT_EQ(kept(logits, {}), (Tokens{2, 0, 5, 3}));
  EXPECT_EQ(kept(logits, {.top_k = 3}), (Tokens{2, 0, 5}));
  EXPECT_EQ(kept(logits, {.top_k = 9}), (Tokens{2, 0, 5, 3}));
  EXPECT_EQ(kept(logits, {.top_p = 0}), (Tokens{2}));
  EXPECT_EQ(kept(logits, {.top_p = 0.53}), (Tokens{2}));
  EXPECT_EQ(kept(logits, {.top_p = 0.54}), (Tokens{2, 0}));
  EXPECT_EQ(kept(logits, {.top_p = 0.81}), (Tokens{2, 0, 5}));
  EXPECT_EQ(kept(logits, {.furthest = -std::log(0.24)}), (Tokens{2, 0, 5}));
  EXPECT_EQ(kept(logits, {.furthest = -std::log(0.26)}), (Tokens{2, 0}));
  EXPECT_EQ(kept(logits, {.furthest = 0}), (Tokens{2}));
  // At temperature 2 weights are 1, 0.71, 0.5, 0.35.
  EXPECT_EQ(kept(logits, {.temperature = 2, .furthest = -std::log(0.49)}), (Tokens{2, 0, 5}));
  // top_p is a share of what top_k keeps: of 1.5, not of 1.875.
  EXPECT_EQ(kept(logits, {.top_p = 0.6}), (Tokens{2, 0}));
  EXPECT_EQ(kept(logits, {.top_k = 2, .top_p = 0.6}), (Tokens{2}));
  EXPECT_EQ(kept(logits, {.top_k = 3, .top_p = 0.9, .furthest = -std::log(0.4)}), (Tokens{2, 0}));
  EXPECT_TRUE(kept({NAN, -kDrawInfinity}, {}).empty());
}

TEST(DrawToken, ChangesComeBeforeTheOrder) {
  const std::vector<float> logits = {4, 3, 0.5f, -1, -2};
  const DrawOptions twice{.repetition_penalty = 2};
  EXPECT_EQ(kept(logits, twice, {{.token = 0, .repeated = 1}, {.token = 3, .repeated = 1}}), (Tokens{1, 0, 2, 3, 4}));
  EXPECT_EQ(kept(logits, twice, {{.token = 3, .bias = 10}}), (Tokens{3, 0, 1, 2, 4}));
  EXPECT_EQ(kept(logits, twice, {{.token = 0, .penalty = 1.5f}}), (Tokens{1, 0, 2, 3, 4}));
  // The bias first: (-1 + 3) / 2 = 1.
  EXPECT_EQ(kept(logits, twice, {{.token = 3, .bias = 3, .repeated = 1}}), (Tokens{0, 1, 3, 2, 4}));
  EXPECT_EQ(kept(logits, twice, {{.token = 1, .bias = -kDrawInfinity}}), (Tokens{0, 2, 3, 4}));
}

// Every device sums integers: the CPU kernel draws what sorting everything draws, to the last bit of the number.
TEST(DrawToken, DrawsWhatSortingDraws) {
  for (const Index vocabulary : {1, 2, 31, 1000, kSanitized ? 6000 : 128256}) {
    for (std::uint64_t seed = 0; seed < (vocabulary > 1000 ? 1 : 8); ++seed) {
      const DrawBatch batch(vocabulary, seed);
      const auto count = std::ssize(batch.options);
      std::vector<DrawnToken> before, before_top;
      for (const int threads : {1, 3}) {
        cpu::Stream stream(threads);
        std::vector<DrawnToken> drawn(batch.options.size()), top(batch.options.size() * DrawBatch::kMostAlternatives);
        run(stream, DrawToken{.logits = batch.logits.view,
                              .options = {batch.options.data(), count},
                              .changes = {batch.changes.data(), std::ssize(batch.changes)},
                              .drawn = {drawn.data(), count},
                              .top = dense(top.data(), count, DrawBatch::kMostAlternatives)});
        if (threads > 1) {
          const auto bytes = drawn.size() * sizeof(DrawnToken);
          EXPECT_EQ(std::memcmp(before.data(), drawn.data(), bytes), 0) << vocabulary << " tokens, " << threads;
          EXPECT_EQ(std::memcmp(before_top.data(), top.data(), bytes * DrawBatch::kMostAlternatives), 0);
          continue;
        }
        for (std::size_t i = 0; i < drawn.size(); ++i) {
          ASSERT_EQ(drawn[i].token, batch.expected(i)) << batch.name(i);
          batch.expect_scored(i, drawn[i], std::span(top).subspan(i * DrawBatch::kMostAlternatives));
        }
        before = drawn;
        before_top = top;
      }
      EXPECT_TRUE(batch.logits.gap_is_intact());
    }
  }
}

TEST(DrawToken, DrawsNothingFromNothing) {
  std::vector<DrawCandidate> room(3);
  const std::vector<float> none = {NAN, -kDrawInfinity, NAN};
  for (const auto& options : draw_cases()) EXPECT_EQ(draw_token(none, options, {}, room).token, -1);
  const std::vector<float> one = {NAN, -1e30f, -kDrawInfinity};
  for (const auto& options : draw_cases()) EXPECT_EQ(draw_token(one, options, {}, room).token, 1);
}

// Frequencies over many positions of the random numbers: chi-square with as many degrees of freedom as tokens less one
// exceeds the bounds with a probability of 1e-6.
void expect_distribution(const std::vector<float>& logits, DrawOptions options, const std::vector<LogitChange>& changes,
                         const std::vector<double>& weights, double bound) {
  constexpr int kDraws = kSanitized ? 20000 : 100000;
  std::vector<DrawCandidate> room(logits.size());
  std::vector<int> seen(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    options.seed = static_cast<std::uint64_t>(i / 1000);
    options.position = static_cast<std::uint64_t>(i % 1000 * 2);
    ++seen[static_cast<std::size_t>(draw_token(logits, options, changes, room).token)];
  }
  double total = 0, chi_square = 0;
  for (const double weight : weights) total += weight;
  for (std::size_t t = 0; t < weights.size(); ++t) {
    const double expected = kDraws * weights[t] / total;
    if (weights[t] == 0)
      EXPECT_EQ(seen[t], 0) << "token " << t;
    else
      chi_square += std::pow(seen[t] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, bound);
}

TEST(DrawToken, FrequenciesFollowTheDefinition) {
  const std::vector<float> logits = {1, 3, 2, -kDrawInfinity, NAN, 0, 2.5f, -1};
  const auto e = [](double x) { return std::exp(x); };
  const std::vector<double> softmax = {e(1), e(3), e(2), 0, 0, e(0), e(2.5), e(-1)};
  expect_distribution(logits, {.temperature = 1}, {}, softmax, 38);
  expect_distribution(logits, {.temperature = 2}, {}, {e(.5), e(1.5), e(1), 0, 0, 1, e(1.25), e(-.5)}, 38);
  expect_distribution(logits, {.temperature = 1, .top_k = 3}, {}, {0, e(3), e(2), 0, 0, 0, e(2.5), 0}, 28);
  expect_distribution(logits, {.temperature = 1, .top_p = 0.95}, {}, {e(1), e(3), e(2), 0, 0, 0, e(2.5), 0}, 31);
  expect_distribution(logits, {.temperature = 1, .furthest = -std::log(0.3)}, {}, {0, e(3), e(2), 0, 0, 0, e(2.5), 0},
                      28);
  expect_distribution(logits, {.temperature = 1, .repetition_penalty = 2},
                      {{.token = 0, .bias = 1}, {.token = 1, .repeated = 1}, {.token = 7, .repeated = 1}},
                      {e(2), e(1.5), e(2), 0, 0, e(0), e(2.5), e(-2)}, 38);
}

TEST(ScoreToken, IsTheLogOfTheSoftmax) {
  const std::vector<float> logits = {1, 3, 3, -kDrawInfinity, NAN};
  std::vector<DrawnToken> top(6);
  const auto scored = score_token(logits, 0, top);
  EXPECT_FLOAT_EQ(scored.logprob, static_cast<float>(1 - std::log(std::exp(1.0) + 2 * std::exp(3.0))));
  std::vector<std::int32_t> tokens;
  for (const auto& one : top) tokens.push_back(one.token);
  EXPECT_EQ(tokens, (Tokens{1, 2, 0, 3, -1, -1}));
  EXPECT_EQ(top[3].logprob, kLeastLogprob);
  EXPECT_EQ(score_token(logits, 4, {}).logprob, kLeastLogprob);
}

}  // namespace
}  // namespace essh
