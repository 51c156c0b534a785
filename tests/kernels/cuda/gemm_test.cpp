#include "essh/kernels/gemm.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T, class Out>
void check_gemm(Index rows, Index columns, Index inner, bool turn_a, bool turn_b, double beta, bool separate,
                Index gap) {
  Rng rng(14);
  StridedMatrix<double> a(turn_a ? inner : rows, turn_a ? rows : inner, gap),
      b(turn_b ? columns : inner, turn_b ? inner : columns, gap), c(rows, columns, gap), addend(rows, columns, gap);
  a.normal(rng);
  b.normal(rng);
  c.normal(rng);
  addend.normal(rng);
  const TwinMatrix<T> gpu_a(a), gpu_b(b);
  const TwinMatrix<Out> gpu_c(c), gpu_addend(addend);
  const auto ta = turn_a ? Transpose::Yes : Transpose::No, tb = turn_b ? Transpose::Yes : Transpose::No;
  run(gpu(), Gemm<T, Out>{gpu_a.view(), gpu_b.view(), gpu_c.view(), ta, tb, 0.5, beta,
                          separate ? Matrix<const Out>(gpu_addend.view()) : Matrix<const Out>{}});
  run(host(), Gemm<double>{a.view, b.view, c.view, ta, tb, 0.5, beta,
                           separate ? Matrix<const double>(addend.view) : Matrix<const double>{}});
  gpu_c.expect_close(c, "c", 1, std::max(kTwinTolerance<Out>, 1e-5));
}

TEST(GemmCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  for (const auto [rows, columns, inner] : {std::array<Index, 3>{1, 128, 64}, {65, 24, 130}, {512, 384, 96}}) {
    for (const bool turn_a : {false, true}) {
      for (const bool turn_b : {false, true}) {
        for (const double beta : {0.0, 1.0}) {
          for (const bool separate : {false, true}) {
            for (const Index gap : {0, 8, 3}) {
              if (next_case()) check_gemm<float, float>(rows, columns, inner, turn_a, turn_b, beta, separate, gap);
              if (next_case())
                check_gemm<BFloat16, BFloat16>(rows, columns, inner, turn_a, turn_b, beta, separate, gap);
              if (next_case()) check_gemm<BFloat16, float>(rows, columns, inner, turn_a, turn_b, beta, separate, gap);
            }
          }
        }
      }
    }
  }
}

// A slice of a weight and its copy give the same product, bit by bit.
TEST(GemmCuda, BitsDoNotDependOnStrides) {
  ESSH_NEEDS_GPU();
  Rng rng(15);
  StridedMatrix<double> a(300, 256, 0), wide(200, 512, 0), copy(200, 256, 0), c(300, 200, 0);
  a.normal(rng);
  wide.normal(rng);
  for (Index r = 0; r < 200; ++r) {
    for (Index k = 0; k < 256; ++k) copy.view(r, k) = wide.view(r, k);
  }
  const TwinMatrix<BFloat16> gpu_a(a), gpu_wide(wide), gpu_copy(copy), one(c), two(c);
  run(gpu(), Gemm<BFloat16>{
                 .a = gpu_a.view(), .b = gpu_wide.view().left(256), .c = one.view(), .transpose_b = Transpose::Yes});
  run(gpu(), Gemm<BFloat16>{.a = gpu_a.view(), .b = gpu_copy.view(), .c = two.view(), .transpose_b = Transpose::Yes});
  const auto x = one.download(), y = two.download();
  EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(BFloat16)), 0);
}

}  // namespace
}  // namespace essh
