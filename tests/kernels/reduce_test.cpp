#include "essh/kernels/cpu/reduce.h"

#include <limits>
#include <vector>

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class ReduceTest : public ::testing::Test {};
TYPED_TEST_SUITE(ReduceTest, FloatTypes);

// Every length, also those that fill no vector. What lies behind the last element is not a number.
TYPED_TEST(ReduceTest, DotIsTheSumOfProducts) {
  using T = TypeParam;
  Rng rng(4);
  for (Index count = 0; count <= 200; ++count) {
    std::vector<T> x(static_cast<std::size_t>(count) + 64, T(NAN)), y = x;
    double exact = 0, size = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      x[i] = static_cast<T>(rng.normal());
      y[i] = static_cast<T>(rng.normal());
      const double term = static_cast<double>(x[i]) * static_cast<double>(y[i]);
      exact += term;
      size += std::abs(term);
    }
    const double bound = 8 * size * static_cast<double>(std::numeric_limits<T>::epsilon());
    EXPECT_NEAR(static_cast<double>(cpu::dot(count, x.data(), y.data())), exact, bound) << count;
  }
}

TYPED_TEST(ReduceTest, LargestIsTheMaximum) {
  using T = TypeParam;
  Rng rng(4);
  for (const Index count : {1, 3, 63, 64, 65, 200}) {
    std::vector<T> x(static_cast<std::size_t>(count));
    std::ranges::generate(x, [&] { return static_cast<T>(rng.normal()); });
    EXPECT_EQ(cpu::largest(count, x.data()), *std::ranges::max_element(x)) << count;
  }
}

}  // namespace
}  // namespace essh
