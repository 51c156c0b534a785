#include "essh/kernels/rms_norm.h"

#include "essh/kernels/reference/rms_norm.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

using reference::Dual;

constexpr double kEps = 1e-5;

template <class T>
class RmsNorm : public ::testing::Test {};
TYPED_TEST_SUITE(RmsNorm, FloatTypes);

TYPED_TEST(RmsNorm, ForwardAgreesWithTheDefinition) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index rows : {0, 1, 5}) {
    for (const Index width : {1, 7, 64, 129}) {
      Rng rng(11);
      StridedMatrix<T> x(rows, width), gain(1, width), y(rows, width), inverse(1, rows);
      x.normal(rng, 3);
      gain.normal(rng);
      run(stream, RmsNormForward<T>{x.view, gain.vector(), y.view, inverse.vector(), kEps});
      for (Index r = 0; r < rows; ++r) {
        const auto exact = reference::rms_norm(x.row(r), gain.row(0), kEps);
        for (Index c = 0; c < width; ++c) expect_close(y.view(r, c), exact[static_cast<std::size_t>(c)], "y");
        double squares = 0;
        for (const double value : x.row(r)) squares += value * value;
        expect_close(inverse.view(0, r), 1 / std::sqrt(squares / static_cast<double>(width) + kEps), "inverse_rms");
      }
      EXPECT_TRUE(y.gap_is_intact() && inverse.gap_is_intact());

      run(stream, RmsNormForward<T>{x.view, gain.vector(), x.view, {}, kEps});
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < width; ++c) EXPECT_EQ(x.view(r, c), y.view(r, c)) << "in place";
      }
    }
  }
}

TYPED_TEST(RmsNorm, ARowOfZerosStaysFinite) {
  using T = TypeParam;
  cpu::Stream stream(1);
  StridedMatrix<T> x(1, 8), gain(1, 8), y(1, 8);
  gain.fill([] { return 2.0; });
  run(stream, RmsNormForward<T>{x.view, gain.vector(), y.view, {}, kEps});
  for (Index c = 0; c < 8; ++c) EXPECT_EQ(y.view(0, c), T(0));
}

TYPED_TEST(RmsNorm, GradientsAreAddedAndAgreeWithDualNumbers) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index rows = 4, width = 9;
  Rng rng(5);
  StridedMatrix<T> x(rows, width), gain(1, width), y(rows, width), inverse(1, rows), d_y(rows, width), d_x(rows, width),
      d_gain(1, width);
  x.normal(rng);
  gain.normal(rng);
  d_y.normal(rng);
  d_x.normal(rng);
  d_gain.normal(rng);
  const StridedMatrix<T> d_x_before = d_x, d_gain_before = d_gain;
  run(stream, RmsNormForward<T>{x.view, gain.vector(), y.view, inverse.vector(), kEps});
  run(stream, RmsNormBackward<T>{x.view, gain.vector(), inverse.vector(), d_y.view, d_x.view, d_gain.vector()});
  EXPECT_TRUE(d_x.gap_is_intact() && d_gain.gap_is_intact());

  std::vector<std::vector<Dual>> dual_x;
  for (Index r = 0; r < rows; ++r) dual_x.push_back(x.template row<Dual>(r));
  auto dual_gain = gain.template row<Dual>(0);
  const auto objective = [&] {
    Dual sum = 0;
    for (Index r = 0; r < rows; ++r) {
      const auto row = reference::rms_norm(dual_x[static_cast<std::size_t>(r)], dual_gain, kEps);
      for (Index c = 0; c < width; ++c)
        sum += Dual(static_cast<double>(d_y.view(r, c))) * row[static_cast<std::size_t>(c)];
    }
    return sum;
  };
  for (Index c = 0; c < width; ++c) {
    for (Index r = 0; r < rows; ++r) {
      expect_gradient(d_x.view(r, c) - d_x_before.view(r, c),
                      dual_x[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)], objective, "x");
    }
    expect_gradient(d_gain.view(0, c) - d_gain_before.view(0, c), dual_gain[static_cast<std::size_t>(c)], objective,
                    "gain");
  }

  StridedMatrix<T> without_gain = d_x_before, rounded(rows, width, 2);
  run(stream,
      RmsNormBackward<T>{x.view, gain.vector(), inverse.vector(), d_y.view, without_gain.view, {}, rounded.view});
  EXPECT_TRUE(rounded.gap_is_intact());
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < width; ++c) {
      EXPECT_EQ(without_gain.view(r, c), d_x.view(r, c));
      EXPECT_EQ(rounded.view(r, c), d_x.view(r, c));
    }
  }
}

TYPED_TEST(RmsNorm, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    Rng rng(3);
    StridedMatrix<T> x(37, 51), gain(1, 51), y(37, 51), inverse(1, 37), d_y(37, 51), d_x(37, 51), d_gain(1, 51);
    x.normal(rng);
    gain.normal(rng);
    d_y.normal(rng);
    run(stream, RmsNormForward<T>{x.view, gain.vector(), y.view, inverse.vector(), kEps});
    run(stream, RmsNormBackward<T>{x.view, gain.vector(), inverse.vector(), d_y.view, d_x.view, d_gain.vector()});
    return std::vector{y, inverse, d_x, d_gain};
  });
}

}  // namespace
}  // namespace essh
