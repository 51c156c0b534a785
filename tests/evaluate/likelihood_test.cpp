#include "essh/evaluate/likelihood.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "essh/base/error.h"
#include "essh/base/rng.h"
#include "essh/decode/session.h"
#include "tests/evaluate/small_engine.h"

namespace essh {
namespace {

std::vector<TokenId> draw(Rng& rng, std::size_t count, Index vocabulary) {
  std::vector<TokenId> tokens(count);
  for (auto& token : tokens) token = static_cast<TokenId>(rng.below(static_cast<std::uint64_t>(vocabulary)));
  return tokens;
}

// From the logits of the whole sequence in one pass.
Likelihood alone(Engine& engine, const Tier& tier, const EncodedRequest& request) {
  auto tokens = request.context;
  tokens.insert(tokens.end(), request.continuation.begin(), request.continuation.end() - 1);
  Likelihood result{.greedy = true};
  all_logits(engine, tier, tokens, LogitsPath::Parallel, [&](Index first, Matrix<const float> logits) {
    for (Index r = 0; r < logits.rows; ++r) {
      const auto place = first + r - static_cast<Index>(request.context.size()) + 1;
      if (place < 0) continue;
      const auto* row = logits.row(r);
      const auto target = request.continuation[static_cast<std::size_t>(place)];
      double sum = 0;
      for (Index c = 0; c < logits.cols; ++c) sum += std::exp(static_cast<double>(row[c]));
      result.log_likelihood += static_cast<double>(row[target]) - std::log(sum);
      const bool largest = std::max_element(row, row + logits.cols) - row == target;
      result.greedy = result.greedy && largest;
      if (place == 0) result.first_greedy = largest;
    }
  });
  return result;
}

// With shared and separate contexts, continuations of one token and contexts of one token.
TEST(MeasureLikelihoods, AreThoseOfEachRequestAlone) {
  auto stream = cpu_stream(2);
  Engine engine(small_family(), stream);
  const auto vocabulary = engine.config().vocab_size;
  const auto tier = tiers_of(engine.config()).front();
  Rng rng(3);
  std::vector<EncodedItem> items;
  for (std::size_t i = 0; i < 12; ++i) {
    auto& item = items.emplace_back();
    const auto context = draw(rng, i % 4 == 0 ? 1 : 3 + 9 * i, vocabulary);
    for (std::size_t r = 0; r <= i % 3; ++r)
      item.push_back({i % 2 == 0 ? context : draw(rng, 5 + i, vocabulary), draw(rng, 1 + (i + r) % 4, vocabulary)});
  }
  // The most likely token, so that at least one continuation is greedy.
  auto& likely = items.back().front();
  engine.model().check_tokens(likely.context, "test");
  for (TokenId token = 0; token < vocabulary; ++token) {
    likely.continuation = {token};
    if (alone(engine, tier, likely).greedy) break;
  }
  const auto scores = measure_likelihoods(engine, tier, items, false),
             exact = measure_likelihoods(engine, tier, items, true);
  bool any = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    ASSERT_EQ(scores[i].size(), items[i].size());
    const auto single = measure_likelihoods(engine, tier, std::span(items).subspan(i, 1), false);
    for (std::size_t r = 0; r < items[i].size(); ++r) {
      const auto expected = alone(engine, tier, items[i][r]);
      const double size = 1e-5 * (1 + std::abs(expected.log_likelihood));
      EXPECT_NEAR(scores[i][r].log_likelihood, expected.log_likelihood, size);
      EXPECT_NEAR(exact[i][r].log_likelihood, expected.log_likelihood, size);
      EXPECT_EQ(exact[i][r].greedy, expected.greedy);
      EXPECT_EQ(exact[i][r].first_greedy, expected.first_greedy);
      EXPECT_EQ(single[0][r].log_likelihood, scores[i][r].log_likelihood) << "other items change nothing";
      any = any || expected.greedy;
    }
  }
  EXPECT_TRUE(any);
}

TEST(EncodeRequest, SplitsAsTheHarnessDoes) {
  const auto tokenizer = make_byte_tokenizer();
  const auto encoded = encode_request({"ab ", "c"}, *tokenizer, 256, 0, "t");
  EXPECT_EQ(encoded.context, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(encoded.continuation, (std::vector<TokenId>{' ', 'c'}));
  const auto empty = encode_request({"", "c"}, *tokenizer, 256, 0, "t");
  EXPECT_EQ(empty.context, (std::vector<TokenId>{256}));
  const auto cut = encode_request({"abcd", "ef"}, *tokenizer, 256, 3, "t");
  EXPECT_EQ(cut.context, (std::vector<TokenId>{'c', 'd'}));
  EXPECT_EQ(cut.tokens(), 3u);
  EXPECT_THROW(encode_request({"abcd", ""}, *tokenizer, 256, 0, "t"), Error);
  EXPECT_THROW(encode_request({"abcd", "efgh"}, *tokenizer, 256, 3, "t"), Error);
}

}  // namespace
}  // namespace essh
