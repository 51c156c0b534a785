#include "essh/kernels/value_blend.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class ValueBlendCuda : public ::testing::Test {};
TYPED_TEST_SUITE(ValueBlendCuda, TwinTypes);

TYPED_TEST(ValueBlendCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index width : {3, 28, 64}) {
    for (const Index channels : {1, 7, 32}) {
      Rng rng(8);
      const Index rows = 333;
      StridedMatrix<double> v0(rows, channels * width), blend(1, channels), v(rows, channels * width),
          d_v(rows, channels * width), d_blend(1, channels);
      v0.normal(rng);
      blend.uniform(rng, -0.2, 1.2);
      d_v.normal(rng);
      d_blend.normal(rng);
      const TwinMatrix<T> gpu_v0(v0), gpu_v(v), gpu_d_v(d_v);
      const TwinMatrix<float> gpu_blend(blend), gpu_d_blend(d_blend);
      run(gpu(), ValueBlendForward<T>{gpu_v0.view(), gpu_blend.vector(), gpu_v.view(), width, 1e-6});
      run(host(), ValueBlendForward<double>{v0.view, blend.vector(), v.view, width, 1e-6});
      gpu_v.expect_close(v, "v");
      run(gpu(), ValueBlendBackward<T>{gpu_v0.view(), gpu_blend.vector(), gpu_d_v.view(), gpu_d_v.view(),
                                       gpu_d_blend.vector(), width, 1e-6});
      run(host(),
          ValueBlendBackward<double>{v0.view, blend.vector(), d_v.view, d_v.view, d_blend.vector(), width, 1e-6});
      gpu_d_v.expect_close(d_v, "d_v0");
      gpu_d_blend.expect_close(d_blend, "d_blend", 4);
    }
  }
}

}  // namespace
}  // namespace essh
