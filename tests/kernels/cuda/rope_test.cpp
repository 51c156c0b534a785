#include "essh/kernels/rope.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class RopeCuda : public ::testing::Test {};
TYPED_TEST_SUITE(RopeCuda, TwinTypes);

TYPED_TEST(RopeCuda, AgreesWithTheCpuFarOut) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const auto rotation : {Rotation::Forward, Rotation::Inverse}) {
    Rng rng(9);
    const Index sequences = 2, length = 65, head_dim = 64, heads = 3;
    StridedMatrix<double> x(sequences * length, heads * head_dim);
    x.normal(rng);
    const std::vector<Index> first = {3, 131000};
    const TwinMatrix<T> gpu_x(x);
    const TwinVector<Index> gpu_first(first);
    run(gpu(), Rope<T>{gpu_x.view(), length, head_dim, gpu_first.view(), 10000, rotation});
    run(host(), Rope<double>{x.view, length, head_dim, {first.data(), 2}, 10000, rotation});
    gpu_x.expect_close(x, "x");
  }
}

}  // namespace
}  // namespace essh
