#include "essh/kernels/cpu/small_gemm.h"

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class SmallGemm : public ::testing::Test {};
TYPED_TEST_SUITE(SmallGemm, FloatTypes);

// Whether a(i, k) may hold anything: it lies in a block of eight rows that is outside the shape entirely.
bool never_read(cpu::Shape shape, Index i, Index k, Index rows) {
  const Index block = i / 8 * 8, last = std::min(block + 8, rows) - 1;
  if (i >= rows / 8 * 8) return shape == cpu::Shape::Lower ? k > i : shape == cpu::Shape::Upper && k < i;
  return shape == cpu::Shape::Lower ? k > last : shape == cpu::Shape::Upper && k < block;
}
bool is_zero(cpu::Shape shape, Index i, Index k) {
  return shape == cpu::Shape::Lower ? k > i : shape == cpu::Shape::Upper && k < i;
}

TYPED_TEST(SmallGemm, EveryShapeAndSizeAgreesWithTheNaiveProduct) {
  using T = TypeParam;
  for (const auto shape : {cpu::Shape::Full, cpu::Shape::Lower, cpu::Shape::Upper}) {
    for (const bool transposed : {false, true}) {
      for (const Index rows : {0, 1, 7, 8, 9, 16, 29}) {
        for (const Index columns : {0, 1, 3, 4, 8, 16, 17, 32, 61, 96}) {
          for (const Index inner : {0, 1, 8, 13, 33}) {
            Rng rng(21);
            StridedMatrix<T> a(transposed ? inner : rows, transposed ? rows : inner), b(inner, columns),
                c(rows, columns);
            a.normal(rng);
            b.normal(rng);
            c.normal(rng);
            const auto at = [&](Index i, Index k) -> T& { return transposed ? a.view(k, i) : a.view(i, k); };
            for (Index i = 0; i < rows; ++i) {
              for (Index k = 0; k < inner; ++k) {
                if (never_read(shape, i, k, rows))
                  at(i, k) = T(NAN);
                else if (is_zero(shape, i, k))
                  at(i, k) = T(0);
              }
            }
            const StridedMatrix<T> before = c;
            const Index stride = a.view.stride;
            cpu::add_product<T>(
                rows, columns, inner,
                transposed ? cpu::Strided<T>{a.view.data, 1, stride} : cpu::Strided<T>{a.view.data, stride, 1},
                b.view.data, b.view.stride, c.view.data, c.view.stride, shape);
            EXPECT_TRUE(c.gap_is_intact());
            StridedMatrix<T> set(rows, columns);
            set.fill([] { return NAN; });
            cpu::set_product<T>(
                rows, columns, inner,
                transposed ? cpu::Strided<T>{a.view.data, 1, stride} : cpu::Strided<T>{a.view.data, stride, 1},
                b.view.data, b.view.stride, set.view.data, set.view.stride, shape);
            EXPECT_TRUE(set.gap_is_intact());
            for (Index i = 0; i < rows; ++i) {
              for (Index j = 0; j < columns; ++j) {
                double exact = 0;
                for (Index k = 0; k < inner; ++k) {
                  if (!is_zero(shape, i, k)) exact += static_cast<double>(at(i, k)) * static_cast<double>(b.view(k, j));
                }
                expect_close(set.view(i, j), exact, "set", 4);
                expect_close(c.view(i, j), static_cast<double>(before.view(i, j)) + exact, "added", 4);
              }
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(SmallGemm, AnElementHasTheSameBitsWhereverItStands) {
  using T = TypeParam;
  Rng rng(22);
  StridedMatrix<T> a(29, 40), b(40, 61), c(29, 61);
  a.normal(rng);
  b.normal(rng);
  cpu::add_product<T>(29, 61, 40, {a.view.data, a.view.stride, 1}, b.view.data, b.view.stride, c.view.data,
                      c.view.stride);
  for (Index i = 0; i < 29; ++i) {
    for (Index j = 0; j < 61; ++j) {
      T alone = 0;
      cpu::add_product<T>(1, 1, 40, {a.view.row(i), a.view.stride, 1}, b.view.data + j, b.view.stride, &alone, 1);
      EXPECT_EQ(alone, c.view(i, j));
    }
  }
}

TYPED_TEST(SmallGemm, TransposeMovesEveryElement) {
  using T = TypeParam;
  for (const Index rows : {0, 1, 15, 16, 17, 64}) {
    for (const Index columns : {0, 1, 8, 16, 28, 33}) {
      Rng rng(23);
      StridedMatrix<T> in(rows, columns), out(columns, rows, 6);
      in.normal(rng);
      cpu::transpose(rows, columns, in.view.data, in.view.stride, out.view.data, out.view.stride);
      EXPECT_TRUE(out.gap_is_intact());
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < columns; ++c) EXPECT_EQ(out.view(c, r), in.view(r, c));
      }
    }
  }
}

TYPED_TEST(SmallGemm, TransposedTilesHoldEveryElement) {
  using T = TypeParam;
  const auto check = [](auto tile) {
    constexpr Index kRows = decltype(tile)::value;
    for (Index columns = 0; columns < 70; ++columns) {
      Rng rng(24);
      StridedMatrix<T> in(kRows, columns);
      in.normal(rng);
      std::vector<T> out(static_cast<std::size_t>(kRows * columns + 1), T(77));
      cpu::transpose_tile<T, kRows>(columns, in.view.data, in.view.stride, out.data());
      EXPECT_EQ(out.back(), T(77));
      for (Index r = 0; r < kRows; ++r) {
        for (Index c = 0; c < columns; ++c) EXPECT_EQ(out[static_cast<std::size_t>(c * kRows + r)], in.view(r, c));
      }
    }
  };
  check(std::integral_constant<Index, 6>());
  check(std::integral_constant<Index, 8>());
}

}  // namespace
}  // namespace essh
