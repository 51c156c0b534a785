#include "essh/kernels/rms_norm.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class Types>
class RmsNormCuda : public ::testing::Test {};
TYPED_TEST_SUITE(RmsNormCuda, TwinResidualTypes);

TYPED_TEST(RmsNormCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = typename TypeParam::Compute;
  using X = typename TypeParam::Residual;
  for (const Index rows : {1, 63, 700}) {
    for (const Index width : {8, 37, 896, 2048}) {
      for (const Index gap : {0, 8, 3}) {
        if (!next_case()) continue;
        Rng rng(5);
        StridedMatrix<double> x(rows, width, gap), gain(1, width), y(rows, width, gap), inverse(1, rows, 0),
            d_y(rows, width, gap), d_x(rows, width, gap), d_gain(1, width), rounded(rows, width, gap);
        x.normal(rng);
        gain.normal(rng, 0.3, 1);
        d_y.normal(rng);
        d_x.normal(rng);
        d_gain.normal(rng);
        const TwinMatrix<X> gpu_x(x), gpu_d_x(d_x);
        const TwinMatrix<T> gpu_y(y), gpu_d_y(d_y), gpu_rounded(rounded);
        const TwinMatrix<float> gpu_gain(gain), gpu_inverse(inverse), gpu_d_gain(d_gain);
        run(gpu(), RmsNormForward<T, X>{gpu_x.view(), gpu_gain.vector(), gpu_y.view(), gpu_inverse.vector(), 1e-5});
        run(host(), RmsNormForward<double>{x.view, gain.vector(), y.view, inverse.vector(), 1e-5});
        gpu_y.expect_close(y, "y");
        gpu_inverse.expect_close(inverse, "1/rms");
        run(gpu(), RmsNormBackward<T, X>{gpu_x.view(), gpu_gain.vector(), gpu_inverse.vector(), gpu_d_y.view(),
                                         gpu_d_x.view(), gpu_d_gain.vector(), gpu_rounded.view()});
        run(host(),
            RmsNormBackward<double>{x.view, gain.vector(), inverse.vector(), d_y.view, d_x.view, d_gain.vector()});
        gpu_d_x.expect_close(d_x, "d_x");
        gpu_d_gain.expect_close(d_gain, "d_gain", 4);
        gpu_rounded.expect_close(d_x, "rounded d_x");
        const auto exact = gpu_d_x.download();
        const auto copy = gpu_rounded.download();
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < width; ++c) {
            const auto at = static_cast<std::size_t>(r * (width + gap) + c);
            ASSERT_EQ(static_cast<float>(copy[at]), static_cast<float>(T(static_cast<float>(exact[at]))));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace essh
