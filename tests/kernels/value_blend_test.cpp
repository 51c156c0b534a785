#include "essh/kernels/value_blend.h"

#include "essh/kernels/reference/mixer.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

using reference::Dual;

constexpr double kBlendEps = 1e-6;

template <class T>
class ValueBlend : public ::testing::Test {};
TYPED_TEST_SUITE(ValueBlend, FloatTypes);

template <class T>
StridedMatrix<T> blends(Index channels) {
  StridedMatrix<T> blend(1, channels);
  for (Index k = 0; k < channels; ++k) blend.view(0, k) = static_cast<T>(0.3 * static_cast<double>(k) - 0.2);
  return blend;
}

TYPED_TEST(ValueBlend, ForwardAgreesWithTheDefinition) {
  using T = TypeParam;
  cpu::Stream stream(2);
  for (const Index rows : {0, 1, 6}) {
    for (const Index channels : {1, 4}) {
      for (const Index width : {1, 5, 28, 64}) {
        Rng rng(7);
        StridedMatrix<T> v0(rows, channels * width), v(rows, channels * width);
        const auto blend = blends<T>(channels);
        v0.normal(rng, 2);
        run(stream, ValueBlendForward<T>{v0.view, blend.vector(), v.view, width, kBlendEps});
        EXPECT_TRUE(v.gap_is_intact());
        for (Index r = 0; r < rows; ++r) {
          for (Index k = 0; k < channels; ++k) {
            const auto exact =
                reference::value_blend(v0.row(r, k * width, width), static_cast<double>(blend.view(0, k)), kBlendEps);
            for (Index p = 0; p < width; ++p)
              expect_close(v.view(r, k * width + p), exact[static_cast<std::size_t>(p)], "v");
          }
        }
        run(stream, ValueBlendForward<T>{v0.view, blend.vector(), v0.view, width, kBlendEps});
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < v.view.cols; ++c) EXPECT_EQ(v0.view(r, c), v.view(r, c)) << "in place";
        }
      }
    }
  }
}

TYPED_TEST(ValueBlend, GradientsAgreeWithDualNumbers) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const Index rows = 3, channels = 3, width = 5;
  Rng rng(23);
  StridedMatrix<T> v0(rows, channels * width), d_v(rows, channels * width), d_v0(rows, channels * width),
      d_blend(1, channels);
  const auto blend = blends<T>(channels);
  v0.normal(rng);
  d_v.normal(rng);
  d_blend.normal(rng);
  const StridedMatrix<T> d_blend_before = d_blend;
  run(stream, ValueBlendBackward<T>{v0.view, blend.vector(), d_v.view, d_v0.view, d_blend.vector(), width, kBlendEps});
  EXPECT_TRUE(d_v0.gap_is_intact() && d_blend.gap_is_intact());
  for (Index k = 0; k < channels; ++k) {
    std::vector<std::vector<Dual>> dual_v0;
    for (Index r = 0; r < rows; ++r) dual_v0.push_back(v0.template row<Dual>(r, k * width, width));
    Dual dual_blend = static_cast<double>(blend.view(0, k));
    const auto objective = [&] {
      Dual sum = 0;
      for (Index r = 0; r < rows; ++r) {
        const auto v = reference::value_blend(dual_v0[static_cast<std::size_t>(r)], dual_blend, kBlendEps);
        for (Index p = 0; p < width; ++p)
          sum += Dual(static_cast<double>(d_v.view(r, k * width + p))) * v[static_cast<std::size_t>(p)];
      }
      return sum;
    };
    for (Index r = 0; r < rows; ++r) {
      for (Index p = 0; p < width; ++p) {
        expect_gradient(d_v0.view(r, k * width + p), dual_v0[static_cast<std::size_t>(r)][static_cast<std::size_t>(p)],
                        objective, "v0");
      }
    }
    expect_gradient(d_blend.view(0, k) - d_blend_before.view(0, k), dual_blend, objective, "blend", 2);
  }

  run(stream, ValueBlendBackward<T>{v0.view, blend.vector(), d_v.view, d_v.view, d_blend.vector(), width, kBlendEps});
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < d_v.view.cols; ++c) EXPECT_EQ(d_v.view(r, c), d_v0.view(r, c)) << "in place";
  }
}

TYPED_TEST(ValueBlend, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    const Index channels = 7, width = 11;
    Rng rng(1);
    StridedMatrix<T> v0(19, channels * width), v(19, channels * width), d_v(19, channels * width),
        d_v0(19, channels * width), d_blend(1, channels);
    const auto blend = blends<T>(channels);
    v0.normal(rng);
    d_v.normal(rng);
    run(stream, ValueBlendForward<T>{v0.view, blend.vector(), v.view, width, kBlendEps});
    run(stream,
        ValueBlendBackward<T>{v0.view, blend.vector(), d_v.view, d_v0.view, d_blend.vector(), width, kBlendEps});
    return std::vector{v, d_v0, d_blend};
  });
}

}  // namespace
}  // namespace essh
