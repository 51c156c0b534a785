#include "essh/kernels/embedding.h"

#include "essh/kernels/column_squares.h"
#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class EmbeddingCuda : public ::testing::Test {};
TYPED_TEST_SUITE(EmbeddingCuda, TwinTypes);

// Widening bf16 is exact.
TEST(EmbeddingResidualCuda, AFloat32ResidualHoldsTheTablesBits) {
  ESSH_NEEDS_GPU();
  for (const Index width : {5, 64, 896}) {
    for (const Index gap : {0, 3}) {
      Rng rng(14);
      const Index rows = 333, vocabulary = 50;
      StridedMatrix<double> table(vocabulary, width, gap), x(rows, width, gap);
      table.normal(rng);
      std::vector<std::int32_t> tokens;
      for (Index r = 0; r < rows; ++r) tokens.push_back(static_cast<std::int32_t>(rng.below(50)));
      const TwinMatrix<BFloat16> gpu_table(table);
      const TwinMatrix<float> gpu_x(x);
      const TwinVector<std::int32_t> gpu_tokens(tokens);
      run(gpu(), EmbeddingForward<BFloat16, float>{gpu_tokens.view(), gpu_table.view(), gpu_x.view()});
      run(host(), EmbeddingForward<double>{{tokens.data(), rows}, table.view, x.view});
      gpu_x.expect_close(x, "x", 1, 0);
    }
  }
}

TYPED_TEST(EmbeddingCuda, AgreesWithTheCpuAndRepeatsItself) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index width : {5, 64}) {
    Rng rng(12);
    const Index rows = 1000, vocabulary = 50;
    StridedMatrix<double> table(vocabulary, width), x(rows, width), d_x(rows, width), d_table(vocabulary, width);
    table.normal(rng);
    d_x.normal(rng);
    d_table.normal(rng);
    std::vector<std::int32_t> tokens;
    for (Index r = 0; r < rows; ++r) tokens.push_back(static_cast<std::int32_t>(rng.below(50) * rng.below(2)));
    const TwinMatrix<T> gpu_table(table), gpu_x(x), gpu_d_x(d_x);
    auto d_again = d_table;
    const TwinMatrix<float> gpu_d_table(d_table), gpu_again(d_again);
    const TwinVector<std::int32_t> gpu_tokens(tokens);
    run(gpu(), EmbeddingForward<T>{gpu_tokens.view(), gpu_table.view(), gpu_x.view()});
    run(host(), EmbeddingForward<double>{{tokens.data(), rows}, table.view, x.view});
    gpu_x.expect_close(x, "x");
    run(gpu(), EmbeddingBackward<T>{gpu_tokens.view(), gpu_d_x.view(), gpu_d_table.view()});
    run(gpu(), EmbeddingBackward<T>{gpu_tokens.view(), gpu_d_x.view(), gpu_again.view()});
    run(host(), EmbeddingBackward<double>{{tokens.data(), rows}, d_x.view, d_table.view});
    gpu_d_table.expect_close(d_table, "d_table", 4);
    const auto once = gpu_d_table.download(), twice = gpu_again.download();
    EXPECT_EQ(std::memcmp(once.data(), twice.data(), once.size() * sizeof(float)), 0);
  }
}

TYPED_TEST(EmbeddingCuda, ColumnSquaresAgreeWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index columns : {5, 1000, 5632}) {
    Rng rng(13);
    const Index rows = 777;
    StridedMatrix<double> x(rows, columns, columns % 8), sums(1, columns, 0);
    x.normal(rng);
    sums.normal(rng);
    const TwinMatrix<T> gpu_x(x);
    const TwinVector<double> gpu_sums(sums.storage);
    run(gpu(), ColumnSquares<T>{gpu_x.view(), gpu_sums.view()});
    run(host(), ColumnSquares<double>{x.view, sums.vector()});
    std::vector<double> result(sums.storage.size());
    gpu().copy(result.data(), gpu_sums.view().data, result.size() * sizeof(double));
    for (std::size_t c = 0; c < result.size(); ++c)
      ASSERT_NEAR(result[c], sums.storage[c], 2e-6 * sums.storage[c] + 1e-6);
  }
}

}  // namespace
}  // namespace essh
