#include "essh/kernels/gemm.h"

#include <limits>

#include "essh/kernels/cpu/packed_product.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class GemmTest : public ::testing::Test {};
TYPED_TEST_SUITE(GemmTest, FloatTypes);

template <class T>
struct GemmProblem {
  Index rows, columns, inner;
  Transpose transpose_a, transpose_b;
  StridedMatrix<T> a, b, c;

  GemmProblem(Index m, Index n, Index k, Transpose ta, Transpose tb)
      : rows(m),
        columns(n),
        inner(k),
        transpose_a(ta),
        transpose_b(tb),
        a(ta == Transpose::Yes ? k : m, ta == Transpose::Yes ? m : k),
        b(tb == Transpose::Yes ? n : k, tb == Transpose::Yes ? k : n, 5),
        c(m, n, 2) {
    Rng rng(static_cast<std::uint64_t>(m * 1000003 + n * 1009 + k));
    a.normal(rng);
    b.normal(rng);
    c.normal(rng);
  }

  Gemm<T> gemm(double alpha = 1, double beta = 0) const {
    return {a.view, b.view, c.view, transpose_a, transpose_b, alpha, beta};
  }
  double left(Index i, Index k) const {
    return static_cast<double>(transpose_a == Transpose::Yes ? a.view(k, i) : a.view(i, k));
  }
  double right(Index k, Index j) const {
    return static_cast<double>(transpose_b == Transpose::Yes ? b.view(j, k) : b.view(k, j));
  }
};

// Every element is within the rounding error of any order of summation.
template <class T>
void expect_product(const GemmProblem<T>& problem, const StridedMatrix<T>& before, double alpha, double beta) {
  for (Index i = 0; i < problem.rows; ++i) {
    for (Index j = 0; j < problem.columns; ++j) {
      const double start = beta == 0 ? 0.0 : beta * static_cast<double>(before.view(i, j));
      double exact = start, size = std::abs(start);
      for (Index k = 0; k < problem.inner; ++k) {
        const double term = alpha * problem.left(i, k) * problem.right(k, j);
        exact += term;
        size += std::abs(term);
      }
      const double rounding = static_cast<double>(std::numeric_limits<T>::epsilon());
      ASSERT_NEAR(static_cast<double>(problem.c.view(i, j)), exact,
                  rounding * size * (2 + std::sqrt(static_cast<double>(problem.inner))))
          << i << ", " << j << " of " << problem.rows << " x " << problem.columns << " x " << problem.inner;
    }
  }
  EXPECT_TRUE(problem.c.gap_is_intact());
}

constexpr Transpose kBoth[] = {Transpose::No, Transpose::Yes};

TYPED_TEST(GemmTest, AgreesWithTheNaiveProduct) {
  using T = TypeParam;
  cpu::Stream stream(1);
  for (const auto ta : kBoth) {
    for (const auto tb : kBoth) {
      for (const Index rows : {0, 1, 3, 4, 5, 16, 17, 100}) {
        for (const Index columns : {0, 1, 16, 33, 70}) {
          for (const Index inner : {1, 7, 64, 131}) {
            for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {-0.5, 1.0}, {2.0, 0.25}}) {
              GemmProblem<T> problem(rows, columns, inner, ta, tb);
              const StridedMatrix<T> before = problem.c;
              run(stream, problem.gemm(alpha, beta));
              expect_product(problem, before, alpha, beta);
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(GemmTest, WithBetaZeroTheOldValuesAreNotRead) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const auto ta : kBoth) {
    for (const auto tb : kBoth) {
      for (const Index rows : {1, 4, 5, 33}) {
        for (const Index inner : {0, 1, 40}) {
          GemmProblem<T> problem(rows, 40, inner, ta, tb);
          problem.c.fill([] { return NAN; });
          run(stream, problem.gemm());
          expect_product(problem, problem.c, 1, 0);
        }
      }
    }
  }
}

// Wide and tall results on thread counts that split them unequally, by columns and by rows.
TYPED_TEST(GemmTest, EveryCutAgreesWithTheNaiveProduct) {
  using T = TypeParam;
  for (const int threads : {1, 2, 5}) {
    cpu::Stream stream(threads);
    for (const auto& [rows, columns] : {std::pair<Index, Index>{17, 211}, {211, 17}, {90, 90}, {4, 211}}) {
      for (const auto ta : kBoth) {
        for (const auto tb : kBoth) {
          GemmProblem<T> problem(rows, columns, 50, ta, tb);
          const StridedMatrix<T> before = problem.c;
          run(stream, problem.gemm(1, 0.5));
          expect_product(problem, before, 1, 0.5);
        }
      }
    }
  }
}

template <class T>
StridedMatrix<T> result_of(cpu::Stream& stream, GemmProblem<T> problem) {
  run(stream, Gemm<T>{problem.a.view, problem.b.view, problem.c.view, problem.transpose_a, problem.transpose_b});
  return problem.c;
}

TYPED_TEST(GemmTest, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  for (const Index rows : {1, 4, 7, 16, 17, 130}) {
    const GemmProblem<T> problem(rows, 77, 301, Transpose::No, Transpose::Yes);
    expect_same_bits_for_any_team([&](cpu::Stream& stream) { return std::vector{result_of(stream, problem)}; });
  }
  // Several pieces of the inner index, ranges of rows and of columns, and both ways of packing.
  for (const auto& [rows, columns, inner] :
       {std::tuple<Index, Index, Index>{64, 600, 700}, {128, 128, 1030}, {300, 90, 600}}) {
    for (const auto ta : kBoth) {
      const GemmProblem<T> problem(rows, columns, inner, ta, Transpose::No);
      expect_same_bits_for_any_team([&](cpu::Stream& stream) { return std::vector{result_of(stream, problem)}; });
    }
  }
}

// The busiest thread of a grid has hardly more tiles than the average. With ranges of equal size taken in turn, the
// gradient of a weight of 128 x 128 gave one of two threads 7 of 11 slivers.
TYPED_TEST(GemmTest, ThreadsShareAGridEqually) {
  using T = TypeParam;
  for (const Index threads : {1, 2, 3, 4}) {
    for (const auto& [tiles, slivers] : {std::pair<Index, Index>{16, 11}, {8, 171}, {16, 3}, {64, 75}, {5, 128}}) {
      const auto grid = cpu::packed::grid_for<T>(tiles, slivers, threads, tiles);
      EXPECT_LE(grid.down, tiles);
      EXPECT_LE(grid.across, slivers);
      EXPECT_GE(grid.longest * threads, tiles * slivers);
      if (threads > 2) continue;
      EXPECT_LE(static_cast<double>(grid.longest * threads), 1.1 * static_cast<double>(tiles * slivers))
          << tiles << " x " << slivers << " for " << threads << " threads";
    }
  }
}

// A row has the same bits in any batch, whichever code path the number of rows selects.
TYPED_TEST(GemmTest, ARowHasTheSameBitsInAnyCompany) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const auto& [rows, group] :
       {std::pair<Index, Index>{16, 1}, {16, 7}, {100, 1}, {100, 3}, {100, 16}, {100, 50}}) {
    for (const auto tb : kBoth) {
      for (const auto& [alpha, beta] : {std::pair{1.0, 0.0}, {0.3, 1.0}, {2.0, 0.7}}) {
        const GemmProblem<T> problem(rows, 77, 301, Transpose::No, tb);
        const StridedMatrix<T> before = problem.c;
        run(stream, problem.gemm(alpha, beta));
        for (Index first = 0; first + group <= rows; first += group) {
          StridedMatrix<T> apart = before;
          run(stream, Gemm<T>{problem.a.view.middle(first, group), problem.b.view, apart.view.middle(first, group),
                              Transpose::No, tb, alpha, beta});
          for (Index r = first; r < first + group; ++r) {
            for (Index c = 0; c < 77; ++c) ASSERT_EQ(apart.view(r, c), problem.c.view(r, c));
          }
        }
      }
    }
  }
}

// A prefix of a weight's rows, as in an exported tier, gives the bits of the whole.
TYPED_TEST(GemmTest, AColumnHasTheSameBitsInASmallerWeight) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index rows : {1, 5, 40}) {
    const GemmProblem<T> problem(rows, 300, 64, Transpose::No, Transpose::Yes);
    const auto whole = result_of(stream, problem);
    StridedMatrix<T> prefix(rows, 111);
    run(stream, Gemm<T>{problem.a.view, problem.b.view.top(111), prefix.view, Transpose::No, Transpose::Yes});
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < 111; ++c) EXPECT_EQ(prefix.view(r, c), whole.view(r, c));
    }
  }
}

// More rows, columns and depth than one packed block holds.
TYPED_TEST(GemmTest, BlocksBeyondTheFirstAgreeWithTheNaiveProduct) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const auto& [rows, columns, inner] :
       {std::tuple<Index, Index, Index>{4130, 33, 20}, {20, 4130, 20}, {20, 33, 700}, {20, 2049, 300}}) {
    GemmProblem<T> problem(rows, columns, inner, Transpose::No, Transpose::No);
    const StridedMatrix<T> before = problem.c;
    run(stream, problem.gemm(1, 1));
    expect_product(problem, before, 1, 1);
  }
}

}  // namespace
}  // namespace essh
