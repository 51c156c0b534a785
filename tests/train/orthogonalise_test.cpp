#include "essh/train/orthogonalise.h"

#include <gtest/gtest.h>

#include "tests/kernels/random_matrix.h"

namespace essh {
namespace {

// x has one nonzero value in each of five rows and columns, so its singular vectors and values are known. y keeps the
// vectors and brings the values near the scale, 2.
TEST(Orthogonalise, KeepsDirectionsAndLevelsSingularValues) {
  auto stream = cpu_stream(2);
  Arena arena(Device::Cpu);
  const std::vector<double> values = {3, 1, 0.3, 0.1, 0.05};
  for (const auto& [rows, cols] : {std::pair<Index, Index>{5, 5}, {5, 12}, {12, 5}, {70, 33}, {33, 70}}) {
    StridedMatrix<float> x(rows, cols), y(rows, cols);
    for (Index i = 0; i < 5; ++i)
      x.view(rows - 1 - i, (i * 3) % 5) = static_cast<float>(values[static_cast<std::size_t>(i)]);
    orthogonalise<float>(stream, arena, x.view, 2.0, y.view);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < cols; ++c) {
        if (x.view(r, c) == 0) {
          EXPECT_NEAR(y.view(r, c), 0, 1e-6) << rows << " x " << cols;
        } else {
          EXPECT_GT(y.view(r, c), 2 * 0.6) << x.view(r, c);
          EXPECT_LT(y.view(r, c), 2 * 1.25) << x.view(r, c);
        }
      }
    }
    EXPECT_TRUE(y.gap_is_intact());
  }
}

// For a random matrix, the rows (or columns) become nearly orthonormal.
TEST(Orthogonalise, RandomMatricesBecomeNearlyOrthonormal) {
  auto stream = cpu_stream(2);
  Arena arena(Device::Cpu);
  Rng rng(7);
  for (const auto& [rows, cols] : {std::pair<Index, Index>{16, 64}, {64, 16}, {1, 9}, {9, 1}}) {
    StridedMatrix<float> x(rows, cols), y(rows, cols);
    x.normal(rng, 1e-6);
    orthogonalise<float>(stream, arena, x.view, 1, y.view);
    const bool tall = rows > cols;
    for (Index i = 0; i < std::min(rows, cols); ++i) {
      for (Index j = 0; j <= i; ++j) {
        double product = 0;
        for (Index k = 0; k < std::max(rows, cols); ++k)
          product += static_cast<double>(tall ? y.view(k, i) * y.view(k, j) : y.view(i, k) * y.view(j, k));
        EXPECT_NEAR(product, i == j ? 1 : 0, i == j ? 0.55 : 0.3) << rows << " x " << cols;
      }
    }
  }
}

TEST(Orthogonalise, ZeroStaysZero) {
  auto stream = cpu_stream(1);
  Arena arena(Device::Cpu);
  StridedMatrix<float> x(6, 4), y(6, 4);
  y.fill([] { return 9.0; });
  orthogonalise<float>(stream, arena, x.view, 1, y.view);
  for (Index r = 0; r < 6; ++r) {
    for (Index c = 0; c < 4; ++c) EXPECT_EQ(y.view(r, c), 0.0f);
  }
}

}  // namespace
}  // namespace essh
