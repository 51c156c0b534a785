#include "tests/decode/speculation_checks.h"

namespace essh {
namespace {

struct SpeculationCuda : ::testing::TestWithParam<Precision> {
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Single tokens and tokens of one pass round differently on a GPU, so each token must be within rounding of the most
// likely one of plain decoding. A draft equal to its target is nearly always accepted.
TEST_P(SpeculationCuda, GreedyTokensAreTheMostLikelyOfPlainDecoding) {
  Stream stream(std::make_unique<cuda::Stream>());
  Engine engine(engine_family(), stream, {.precision = GetParam()});
  const double bound = GetParam() == Precision::BFloat16 ? 6e-2 : 1e-4;
  const auto prompt = random_tokens(40, engine.config().vocab_size, 5);
  const auto tier = find_tier(engine.config(), "T9");
  for (const char* draft : {"T9", "T1"}) {
    for (const Index most : {Index{3}, kMostDrafted}) {
      const auto run =
          drafted_text(engine, tier, find_tier(engine.config(), draft), {.most = most, .least = most}, prompt, 120);
      if (draft == tier.name) {
        EXPECT_GT(run.counts.acceptance(), 0.9) << most;
      }
      Session plain(engine, tier);
      plain.feed(prompt);
      for (std::size_t i = 0; i < run.text.size(); ++i) {
        const auto logits = plain.logits();
        const auto [least, largest] = std::ranges::minmax(logits);
        EXPECT_GE(logits[static_cast<std::size_t>(run.text[i])], largest - bound * (largest - least))
            << draft << ", most " << most << ", token " << i;
        plain.feed({&run.text[i], 1});
      }
    }
  }
}

// Rewinding to any token of a pass equals never feeding the rest.
TEST_P(SpeculationCuda, TokensTakenBackLeaveNoTrace) {
  Stream stream(std::make_unique<cuda::Stream>());
  Engine engine(engine_family(), stream, {.precision = GetParam(), .deterministic = true});
  const auto tokens = random_tokens(90, engine.config().vocab_size, 6);
  const auto tier = find_tier(engine.config(), "T6");
  const auto all = std::span<const std::int32_t>(tokens);
  for (std::size_t kept = 1; kept <= 17; ++kept) {
    Session rolled(engine, tier, {.rewind = 16}), plain(engine, tier, {.rewind = 16});
    for (auto* session : {&rolled, &plain}) session->feed(all.first(60));
    rolled.feed_each(all.subspan(60, 17));
    rolled.take_back(static_cast<Index>(17 - kept));
    plain.feed_each(all.subspan(60, kept));
    EXPECT_EQ(rolled.snapshot().parts, plain.snapshot().parts) << kept;
    for (auto* session : {&rolled, &plain}) session->feed(all.subspan(80, 1));
    EXPECT_TRUE(std::ranges::equal(rolled.logits(), plain.logits())) << kept;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, SpeculationCuda, ::testing::Values(Precision::Float32, Precision::BFloat16));

}  // namespace
}  // namespace essh
