#include "essh/kernels/rope.h"

#include "essh/kernels/reference/rope.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

constexpr double kTheta = 10000;

template <class T>
class RopeTest : public ::testing::Test {};
TYPED_TEST_SUITE(RopeTest, FloatTypes);

TYPED_TEST(RopeTest, AgreesWithTheDefinition) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index heads = 3, sequences = 3;
  const std::vector<Index> first = {0, 17, 1'000'000};
  for (const Index length : {0, 1, 7, 200}) {
    for (const Index head_dim : {2, 8, 30}) {
      Rng rng(4);
      StridedMatrix<T> x(sequences * length, heads * head_dim);
      x.normal(rng);
      for (const bool placed : {false, true}) {
        StridedMatrix<T> turned = x;
        run(stream, Rope<T>{turned.view, length, head_dim,
                            placed ? Vector<const Index>{first.data(), sequences} : Vector<const Index>{}, kTheta});
        EXPECT_TRUE(turned.gap_is_intact());
        for (Index r = 0; r < x.view.rows; ++r) {
          const Index start = placed ? first[static_cast<std::size_t>(r / length)] : 0;
          for (Index h = 0; h < heads; ++h) {
            const auto exact =
                reference::rope(x.row(r, h * head_dim, head_dim), static_cast<double>(start + r % length), kTheta);
            // The angle at position 10^6 itself is accurate to 1e-10 only.
            for (Index i = 0; i < head_dim; ++i)
              expect_close(turned.view(r, h * head_dim + i), exact[static_cast<std::size_t>(i)], "x", placed ? 1e3 : 1);
          }
        }
      }
    }
  }
}

TYPED_TEST(RopeTest, InnerProductsDependOnTheDistanceAlone) {
  using T = TypeParam;
  cpu::Stream stream(1);
  const Index head_dim = 16;
  Rng rng(6);
  StridedMatrix<T> q(1, head_dim), k(1, head_dim);
  q.normal(rng);
  k.normal(rng);
  const auto product = [&](Index at_q, Index at_k) {
    StridedMatrix<T> x = q, y = k;
    run(stream, Rope<T>{x.view, 1, head_dim, {&at_q, 1}, kTheta});
    run(stream, Rope<T>{y.view, 1, head_dim, {&at_k, 1}, kTheta});
    double sum = 0;
    for (Index i = 0; i < head_dim; ++i) sum += static_cast<double>(x.view(0, i)) * static_cast<double>(y.view(0, i));
    return sum;
  };
  for (const Index distance : {0, 1, 40, 3000}) {
    const double near = product(distance, 0);
    for (const Index shift : {1, 99, 5000}) EXPECT_NEAR(product(distance + shift, shift), near, 20 * kTolerance<T>);
  }
  EXPECT_GT(std::abs(product(1, 0) - product(40, 0)), 1e-3);
}

TYPED_TEST(RopeTest, TheInverseUndoesTheRotation) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index first[] = {5, 123456};
  Rng rng(12);
  StridedMatrix<T> x(2 * 21, 3 * 10);
  x.normal(rng);
  StridedMatrix<T> back = x;
  run(stream, Rope<T>{back.view, 21, 10, {first, 2}, kTheta});
  run(stream, Rope<T>{back.view, 21, 10, {first, 2}, kTheta, Rotation::Inverse});
  for (Index r = 0; r < x.view.rows; ++r) {
    for (Index c = 0; c < x.view.cols; ++c) expect_close(back.view(r, c), static_cast<double>(x.view(r, c)), "x");
  }
}

TYPED_TEST(RopeTest, ATokenHasTheSameBitsAloneAndInASequence) {
  using T = TypeParam;
  cpu::Stream stream(2);
  Rng rng(13);
  StridedMatrix<T> x(90, 2 * 12);
  x.normal(rng);
  StridedMatrix<T> together = x;
  run(stream, Rope<T>{together.view, 90, 12, {}, kTheta});
  for (Index r = 0; r < 90; ++r) {
    run(stream, Rope<T>{x.view.middle(r, 1), 1, 12, {&r, 1}, kTheta});
    for (Index c = 0; c < x.view.cols; ++c) EXPECT_EQ(x.view(r, c), together.view(r, c));
  }
}

TYPED_TEST(RopeTest, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    const Index first[] = {3, 77};
    Rng rng(3);
    StridedMatrix<T> x(2 * 33, 3 * 14);
    x.normal(rng);
    run(stream, Rope<T>{x.view, 33, 14, {first, 2}, kTheta});
    return std::vector{x};
  });
}

}  // namespace
}  // namespace essh
