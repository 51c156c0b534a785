#include "essh/kernels/swiglu.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class SwigluCuda : public ::testing::Test {};
TYPED_TEST_SUITE(SwigluCuda, TwinTypes);

TYPED_TEST(SwigluCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index columns : {1, 64, 77}) {
    for (const Index gap : {0, 3}) {
      Rng rng(6);
      const Index rows = 131;
      StridedMatrix<double> gate(rows, columns, gap), up(rows, columns, gap), hidden(rows, columns, gap),
          d_hidden(rows, columns, gap), again(rows, columns, gap);
      gate.normal(rng, 2);
      up.normal(rng);
      d_hidden.normal(rng);
      const TwinMatrix<T> gpu_gate(gate), gpu_up(up), gpu_hidden(hidden), gpu_d_hidden(d_hidden), gpu_again(again);
      run(gpu(), SwigluForward<T>{gpu_gate.view(), gpu_up.view(), gpu_hidden.view()});
      run(host(), SwigluForward<double>{gate.view, up.view, hidden.view});
      gpu_hidden.expect_close(hidden, "hidden");
      // In place, like the model.
      run(gpu(), SwigluBackward<T>{gpu_gate.view(), gpu_up.view(), gpu_d_hidden.view(), gpu_gate.view(), gpu_up.view(),
                                   gpu_again.view()});
      run(host(), SwigluBackward<double>{gate.view, up.view, d_hidden.view, gate.view, up.view, again.view});
      gpu_gate.expect_close(gate, "d_gate");
      gpu_up.expect_close(up, "d_up");
      gpu_again.expect_close(again, "hidden again");
    }
  }
}

}  // namespace
}  // namespace essh
