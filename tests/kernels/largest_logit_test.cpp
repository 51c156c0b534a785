#include "essh/kernels/largest_logit.h"

#include <cmath>
#include <limits>

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

TEST(LargestLogit, KeysOrderLikeTheirLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> rising = {-kInfinity, -1e30f, -1.5f, -1e-40f, 0.0f, 1e-40f, 0.25f, 3.0f, kInfinity};
  for (std::size_t i = 1; i < rising.size(); ++i) EXPECT_GT(logit_key(rising[i], 9), logit_key(rising[i - 1], 2)) << i;
  EXPECT_GT(logit_key(1.0f, 3), logit_key(1.0f, 4)) << "the first of equal ones";
  EXPECT_EQ(logit_key(std::nanf(""), 3), 0u);
  EXPECT_GT(logit_key(-kInfinity, 1 << 30), 0u);
  for (const std::int32_t token : {0, 1, 128255, std::numeric_limits<std::int32_t>::max()})
    EXPECT_EQ(token_of_key(logit_key(-7.5f, token)), token);
}

TEST(LargestLogit, FindsTheFirstLargestOfEachRow) {
  Rng rng(3);
  cpu::Stream stream(2);
  for (const Index columns : {1, 5, 300, 9001}) {
    StridedMatrix<float> logits(7, columns);
    logits.uniform(rng, -1, 1);
    logits.view(2, columns / 2) = logits.view(2, columns - 1) = 5;
    logits.view(3, 0) = std::nanf("");
    std::vector<LogitKey> keys(7);
    keys[6] = logit_key(9, 1);  // larger than any
    run(stream, LargestLogit{.logits = logits.view, .keys = {keys.data(), 7}});
    for (Index r = 0; r < 6; ++r) {
      Index best = -1;
      for (Index c = 0; c < columns; ++c) {
        const float x = logits.view(r, c);
        if (!std::isnan(x) && (best < 0 || x > logits.view(r, best))) best = c;
      }
      if (best < 0)
        EXPECT_EQ(keys[static_cast<std::size_t>(r)], 0u);
      else
        EXPECT_EQ(token_of_key(keys[static_cast<std::size_t>(r)]), best) << columns << " columns, row " << r;
    }
    std::vector<std::int32_t> tokens(7);
    run(stream, DrawnTokens{.keys = {keys.data(), 7}, .tokens = {tokens.data(), 7}});
    EXPECT_EQ(tokens[6], 1);
    EXPECT_EQ(tokens[2], columns / 2);
    EXPECT_EQ(keys, std::vector<LogitKey>(7, 0));
  }
}

}  // namespace
}  // namespace essh
