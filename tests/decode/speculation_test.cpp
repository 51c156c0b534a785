#include <cmath>

#include "tests/decode/speculation_checks.h"

namespace essh {
namespace {

// Chi-square of counts against expectations, as standard deviations from its mean. Cells with small expectations are
// merged.
double chi_square(const std::vector<double>& expected, const std::vector<double>& counted) {
  double sum = 0, cells = 0, few_expected = 0, few_counted = 0;
  const auto add = [&](double e, double c) {
    sum += (c - e) * (c - e) / e;
    ++cells;
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= 5) {
      add(expected[i], counted[i]);
    } else if (expected[i] == 0 && counted[i] > 0) {
      return INFINITY;
    } else {
      few_expected += expected[i];
      few_counted += counted[i];
    }
  }
  if (few_expected >= 5) add(few_expected, few_counted);
  return (sum - (cells - 1)) / std::sqrt(2 * (cells - 1));
}
constexpr double kTooFar = 5;

const std::vector<TokenShare> kTarget = {{0, 0.4}, {1, 0.05}, {3, 0.25}, {4, 0.1}, {7, 0.2}};
const std::vector<TokenShare> kDraft = {{0, 0.1}, {1, 0.3}, {2, 0.2}, {3, 0.25}, {7, 0.15}};

template <class Rule>
double distance_of_rule(const Rule& rule) {
  constexpr int kDraws = 100000;
  Rng random(5);
  std::vector<double> expected(8), counted(8);
  for (const auto& one : kTarget) expected[static_cast<std::size_t>(one.token)] = kDraws * one.share;
  for (int i = 0; i < kDraws; ++i) ++counted[static_cast<std::size_t>(rule(draw_from(kDraft, random), random))];
  return chi_square(expected, counted);
}

TEST(Speculation, TokensOfADraftGetTheTargetsDistribution) {
  EXPECT_LT(distance_of_rule(
                [](std::int32_t drafted, Rng& random) { return accept_or_draw(kTarget, kDraft, drafted, random); }),
            kTooFar);
  // The test detects two rules that are almost right: redrawing from the target itself, and keeping every token the
  // target allows.
  EXPECT_GT(distance_of_rule([](std::int32_t drafted, Rng& random) {
              const auto token = accept_or_draw(kTarget, kDraft, drafted, random);
              return token == drafted ? token : draw_from(kTarget, random);
            }),
            kTooFar);
  EXPECT_GT(distance_of_rule([](std::int32_t drafted, Rng& random) {
              const bool allowed =
                  std::ranges::any_of(kTarget, [&](const TokenShare& one) { return one.token == drafted; });
              return allowed ? drafted : accept_or_draw(kTarget, kDraft, drafted, random);
            }),
            kTooFar);
  // The acceptance rate is the overlap of the two distributions.
  Rng random(6);
  int kept = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto drafted = draw_from(kDraft, random);
    kept += accept_or_draw(kTarget, kDraft, drafted, random) == drafted;
  }
  EXPECT_NEAR(kept / 100000.0, 0.1 + 0.05 + 0.25 + 0.15, 0.01);
}

TEST(Speculation, EqualDistributionsKeepEveryToken) {
  Rng random(7);
  for (int i = 0; i < 1000; ++i) {
    const auto drafted = draw_from(kTarget, random);
    EXPECT_EQ(accept_or_draw(kTarget, kTarget, drafted, random), drafted);
  }
}

TEST(Speculation, GreedyTakesNoRandomNumbers) {
  Rng random(1);
  const std::vector<TokenShare> five = {{5, 1}}, six = {{6, 1}};
  EXPECT_EQ(draw_from(five, random), 5);
  EXPECT_EQ(accept_or_draw(five, five, 5, random), 5);
  EXPECT_EQ(accept_or_draw(six, five, 5, random), 6);
  EXPECT_EQ(random.position(), 0u);
}

TEST(Speculation, MoreAcceptanceMeansLongerDrafts) {
  EXPECT_EQ(best_draft_length(0, 0.2, 0.1, {.most = 8}), 1);
  EXPECT_EQ(best_draft_length(1, 0.2, 0.1, {.most = 8}), 8);
  EXPECT_EQ(best_draft_length(0, 0.2, 0.1, {.most = 8, .least = 3}), 3);
  Index before = 1;
  for (double acceptance = 0; acceptance < 1; acceptance += 0.05) {
    const auto length = best_draft_length(acceptance, 0.2, 0.1, {.most = 16});
    EXPECT_GE(length, before);
    before = length;
  }
  EXPECT_GT(before, 4);
}

// The greedy text equals plain decoding token by token for any tier, draft and length. The texts exceed the window, and
// one layer has full attention.
TEST(Speculation, GreedyTextIsThatOfPlainDecoding) {
  auto stream = cpu_stream(2);
  Engine engine(engine_family(), stream);
  const auto prompt = random_tokens(40, engine.config().vocab_size, 5);
  constexpr Index kTokens = 70;
  for (const char* name : {"T10", "T5"}) {
    const auto tier = find_tier(engine.config(), name);
    const auto expected = plain_text(engine, tier, prompt, kTokens);
    // A draft as large as its target gets one token by the cost rule; 16 forces long drafts.
    for (const Index least : {1, 16}) {
      const SpeculationOptions options{.most = std::max<Index>(4, least), .least = least};
      const auto same = drafted_text(engine, tier, tier, options, prompt, kTokens);
      EXPECT_EQ(same.text, expected) << name << " by itself, " << least;
      EXPECT_EQ(same.counts.accepted, same.counts.checked);
      EXPECT_EQ(same.counts.passes, (kTokens - 1 + least) / (least + 1))
          << "a pass finds one token more than were drafted";
      const auto other = drafted_text(engine, tier, find_tier(engine.config(), "T1"), options, prompt, kTokens);
      EXPECT_EQ(other.text, expected) << name << " by T1, " << least;
      EXPECT_LT(other.counts.accepted, other.counts.checked) << "the small tier of random weights is often wrong";
    }
  }
}

TEST(Speculation, GreedyTextWithARepetitionPenaltyIsThatOfPlainDecoding) {
  auto stream = cpu_stream(2);
  Engine engine(engine_family(), stream);
  const auto prompt = random_tokens(30, engine.config().vocab_size, 6);
  const SamplingOptions sampling{.repetition_penalty = 1.5, .repetition_window = 7};
  const auto tier = find_tier(engine.config(), "T6");
  const auto expected = plain_text(engine, tier, prompt, 60, sampling);
  EXPECT_NE(expected, plain_text(engine, tier, prompt, 60));
  for (const char* draft : {"T2", "T6"}) {
    EXPECT_EQ(
        drafted_text(engine, tier, find_tier(engine.config(), draft), {.most = 6, .least = 4}, prompt, 60, sampling)
            .text,
        expected)
        << draft;
  }
}

// For any number of kept tokens, state, position and logits equal feeding these tokens singly.
TEST(Speculation, StatesAreThoseOfTheTokensKept) {
  auto stream = cpu_stream(2);
  Engine engine(engine_family(), stream);
  const auto prompt = random_tokens(240, engine.config().vocab_size, 7);  // long: caches grow during drafts
  const auto tier = find_tier(engine.config(), "T8");
  for (const char* draft : {"T8", "T1"}) {
    for (const Index most : {Index{3}, kMostDrafted}) {
      Session session(engine, tier, {.rewind = most}), plain(engine, tier);
      SpeculativeText drafted(session, find_tier(engine.config(), draft), {.most = most, .least = most});
      drafted.feed(prompt);
      plain.feed(prompt);
      Sampler sampler(SamplingOptions{});
      for (Index round = 0; round < 16; ++round) {
        const auto found = drafted.next(sampler, 100);
        const auto kept = round % 3 == 0 ? std::ssize(found) : round % (std::ssize(found) + 1);
        for (const auto& token : found.first(static_cast<std::size_t>(kept))) plain.feed({&token, 1});
        drafted.keep(kept);
        if (round % 4 < 2) continue;  // the next round starts with a token that is not fed
        drafted.feed({});
        ASSERT_EQ(session.position(), plain.position()) << draft << ", round " << round;
        ASSERT_TRUE(std::ranges::equal(session.logits(), plain.logits())) << draft << ", round " << round;
        ASSERT_EQ(session.snapshot().parts, plain.snapshot().parts) << draft << ", round " << round;
      }
      // A further prompt.
      drafted.feed(prompt);
      plain.feed(prompt);
      EXPECT_EQ(drafted.next(sampler, 9)[0], sampler.draw(plain.logits()));
    }
  }
}

TEST(Speculation, ADraftHasNoMoreChannelsThanItsTarget) {
  auto stream = cpu_stream(1);
  Engine engine(engine_family(), stream);
  Session session(engine, find_tier(engine.config(), "T4"), {.rewind = 4});
  EXPECT_THROW(SpeculativeText(session, find_tier(engine.config(), "T5"), {}), Error);
}

TEST(Speculation, SameSeedSameText) {
  auto stream = cpu_stream(1);
  Engine engine(engine_family(), stream);
  const auto prompt = random_tokens(20, engine.config().vocab_size, 8);
  const auto tier = find_tier(engine.config(), "T7"), draft = find_tier(engine.config(), "T3");
  const auto text = [&](std::uint64_t seed) {
    return drafted_text(engine, tier, draft, {}, prompt, 40, {.temperature = 0.8, .seed = seed}).text;
  };
  EXPECT_EQ(text(3), text(3));
  EXPECT_NE(text(3), text(4));
}

// The frequencies of the first three tokens over many seeds against their exact probabilities, with every filter.
TEST(Speculation, DrawnTextHasTheTargetsDistribution) {
  auto config = small_config();
  config.vocab_size = 6;
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3, 0.6);
  auto stream = cpu_stream(1);
  Engine engine(StoredModel(std::move(model), "a"), stream);
  const auto tier = find_tier(config, "full"), draft = find_tier(config, "1x2");
  const std::vector<std::int32_t> prompt = {1, 4, 2, 2, 5, 0, 3};
  constexpr std::size_t kTokens = 3, kSeeds = kSanitized ? 500 : 1500;
  for (const SamplingOptions& sampling : {SamplingOptions{.temperature = 1}, SamplingOptions{.temperature = 1.5,
                                                                             .top_k = 4,
                                                                             .top_p = 0.95,
                                                                             .min_p = 0.02,
                                                                             .repetition_penalty = 1.6,
                                                                             .repetition_window = 3}}) {
    std::vector<double> expected(6 * 6 * 6), counted(expected.size());
    const std::function<void(std::vector<std::int32_t>, std::size_t, double)> spread =
        [&](std::vector<std::int32_t> text, std::size_t cell, double share) {
          if (text.size() == prompt.size() + kTokens) {
            expected[cell] = kSeeds * share;
            return;
          }
          Session session(engine, tier);
          session.feed(text);
          Sampler sampler(sampling);
          for (const auto token : text) sampler.see(token);
          for (const auto& one : sampler.distribution(session.logits())) {
            text.push_back(one.token);
            spread(text, cell * 6 + static_cast<std::size_t>(one.token), share * one.share);
            text.pop_back();
          }
        };
    spread(prompt, 0, 1);
    SpeculationCounts counts;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      auto drawn = sampling;
      drawn.seed = seed;
      // Rounds extend beyond the counted tokens, so that these come from complete drafts.
      const auto run = drafted_text(engine, tier, draft, {.most = 4, .least = 4}, prompt, kTokens + 3, drawn);
      std::size_t cell = 0;
      for (std::size_t i = 0; i < kTokens; ++i) cell = cell * 6 + static_cast<std::size_t>(run.text[i]);
      ++counted[cell];
      counts.checked += run.counts.checked;
      counts.accepted += run.counts.accepted;
    }
    EXPECT_LT(chi_square(expected, counted), kTooFar);
    EXPECT_GT(counts.acceptance(), 0.2);
    EXPECT_LT(counts.acceptance(), 0.95) << "the draft is another model";
  }
}

}  // namespace
}  // namespace essh
