#include "essh/kernels/rms_norm.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class RmsNormCuda : public ::testing::Test {};
TYPED_TEST_SUITE(RmsNormCuda, TwinTypes);

TYPED_TEST(RmsNormCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index rows : {1, 63, 700}) {
    for (const Index width : {8, 37, 896, 2048}) {
      for (const Index gap : {0, 8, 3}) {
        Rng rng(5);
        StridedMatrix<double> x(rows, width, gap), gain(1, width), y(rows, width, gap), inverse(1, rows, 0),
            d_y(rows, width, gap), d_x(rows, width, gap), d_gain(1, width);
        x.normal(rng);
        gain.normal(rng, 0.3, 1);
        d_y.normal(rng);
        d_x.normal(rng);
        d_gain.normal(rng);
        const TwinMatrix<T> gpu_x(x), gpu_y(y), gpu_d_y(d_y), gpu_d_x(d_x);
        const TwinMatrix<float> gpu_gain(gain), gpu_inverse(inverse), gpu_d_gain(d_gain);
        run(gpu(), RmsNormForward<T>{gpu_x.view(), gpu_gain.vector(), gpu_y.view(), gpu_inverse.vector(), 1e-5});
        run(host(), RmsNormForward<double>{x.view, gain.vector(), y.view, inverse.vector(), 1e-5});
        gpu_y.expect_close(y, "y");
        gpu_inverse.expect_close(inverse, "1/rms");
        run(gpu(), RmsNormBackward<T>{gpu_x.view(), gpu_gain.vector(), gpu_inverse.vector(), gpu_d_y.view(),
                                      gpu_d_x.view(), gpu_d_gain.vector()});
        run(host(),
            RmsNormBackward<double>{x.view, gain.vector(), inverse.vector(), d_y.view, d_x.view, d_gain.vector()});
        gpu_d_x.expect_close(d_x, "d_x");
        gpu_d_gain.expect_close(d_gain, "d_gain", 4);
      }
    }
  }
}

}  // namespace
}  // namespace essh
