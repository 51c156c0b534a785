#include "essh/kernels/embedding.h"

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class Embedding : public ::testing::Test {};
TYPED_TEST_SUITE(Embedding, FloatTypes);

const std::vector<std::int32_t> kTokens = {4, 0, 4, 6, 4, 4, 1, 0};

template <class T>
struct EmbeddingProblem {
  StridedMatrix<T> table{7, 13}, d_x{static_cast<Index>(kTokens.size()), 13};
  EmbeddingProblem() {
    Rng rng(1);
    table.normal(rng);
    d_x.normal(rng);
  }
};

Vector<const std::int32_t> first_tokens(Index count) {
  return {kTokens.data(), count};
}

TYPED_TEST(Embedding, RowsAreCopied) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const EmbeddingProblem<T> p;
  for (const Index count : {0, 1, 8}) {
    StridedMatrix<T> x(count, 13);
    run(stream, EmbeddingForward<T>{first_tokens(count), p.table.view, x.view});
    EXPECT_TRUE(x.gap_is_intact());
    for (Index r = 0; r < count; ++r) {
      for (Index c = 0; c < 13; ++c) EXPECT_EQ(x.view(r, c), p.table.view(kTokens[static_cast<std::size_t>(r)], c));
    }
  }
}

TYPED_TEST(Embedding, GradientsOfARepeatedTokenAddUp) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const EmbeddingProblem<T> p;
  for (const Index count : {0, 1, 8}) {
    StridedMatrix<T> d_table = p.table;
    run(stream, EmbeddingBackward<T>{first_tokens(count), p.d_x.view.top(count), d_table.view});
    EXPECT_TRUE(d_table.gap_is_intact());
    for (Index token = 0; token < 7; ++token) {
      for (Index c = 0; c < 13; ++c) {
        auto exact = static_cast<double>(p.table.view(token, c));
        for (Index r = 0; r < count; ++r) {
          if (kTokens[static_cast<std::size_t>(r)] == token) exact += static_cast<double>(p.d_x.view(r, c));
        }
        expect_close(d_table.view(token, c), exact, "d_table");
      }
    }
  }
}

TYPED_TEST(Embedding, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    const EmbeddingProblem<T> p;
    StridedMatrix<T> x(8, 13), d_table = p.table;
    run(stream, EmbeddingForward<T>{first_tokens(8), p.table.view, x.view});
    run(stream, EmbeddingBackward<T>{first_tokens(8), p.d_x.view, d_table.view});
    return std::vector{x, d_table};
  });
}

}  // namespace
}  // namespace essh
