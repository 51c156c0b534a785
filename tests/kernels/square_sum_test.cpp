#include "essh/kernels/square_sum.h"

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class SquareSumTest : public ::testing::Test {};
TYPED_TEST_SUITE(SquareSumTest, FloatTypes);

TYPED_TEST(SquareSumTest, AddsTheSquaresAtAnySizeAndPlace) {
  using W = TypeParam;
  Rng rng(1);
  for (const Index size : {0, 1, 63, 64, 65, 1023, 1024, 1025, 65535, 65536, 65537, 200'001}) {
    for (const Index first : {0, 1}) {
      StridedMatrix<W> x(1, first + size);
      x.normal(rng);
      double exact = 3;
      for (Index i = first; i < first + size; ++i)
        exact += static_cast<double>(x.view(0, i)) * static_cast<double>(x.view(0, i));
      double sum = 3;
      cpu::Stream stream(2);
      run(stream, SquareSum<W>{.x = {x.view.data + first, size}, .sum = &sum});
      EXPECT_NEAR(sum, exact, kTolerance<W> * exact) << size;
    }
  }
}

TYPED_TEST(SquareSumTest, BitsDoNotDependOnTheTeam) {
  using W = TypeParam;
  Rng rng(2);
  StridedMatrix<W> x(1, 300'003);
  x.normal(rng);
  expect_same_bits_for_any_team([&](cpu::Stream& stream) {
    StridedMatrix<double> sum(1, 1);
    run(stream, SquareSum<W>{.x = x.vector(), .sum = sum.view.data});
    return std::vector{sum};
  });
}

TYPED_TEST(SquareSumTest, WhatIsNotFiniteShows) {
  using W = TypeParam;
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    StridedMatrix<W> x(1, 70'000);
    x.view(0, 66'000) = static_cast<W>(bad);
    double sum = 0;
    cpu::Stream stream(2);
    run(stream, SquareSum<W>{.x = x.vector(), .sum = &sum});
    EXPECT_FALSE(std::isfinite(sum));
  }
}

}  // namespace
}  // namespace essh
