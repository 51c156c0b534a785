#include "essh/kernels/gemm.h"

#include "essh/kernels/cuda/matmul_plans.h"

namespace essh {
namespace {

template <class T>
constexpr cuda::MatmulType type_of() {
  return std::is_same_v<T, BFloat16> ? cuda::MatmulType::BFloat16 : cuda::MatmulType::Float32;
}

}  // namespace

// Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T: the operands swap.
template <class T, class Out>
void run(cuda::Stream& stream, const Gemm<T, Out>& op) {
  if (op.c.rows == 0 || op.c.cols == 0) return;
  const bool a_turned = op.transpose_a == Transpose::Yes, b_turned = op.transpose_b == Transpose::Yes;
  const Index inner = a_turned ? op.a.rows : op.a.cols;
  ESSH_ASSERT(inner == (b_turned ? op.b.cols : op.b.rows));
  const auto addend = op.addend.empty() ? Matrix<const Out>(op.c) : op.addend;
  stream.attachment<cuda::MatmulPlans>().multiply({.input = type_of<T>(),
                                                   .output = type_of<Out>(),
                                                   .left = {op.b.data, op.b.stride, b_turned},
                                                   .right = {op.a.data, op.a.stride, a_turned},
                                                   .rows = op.c.cols,
                                                   .columns = op.c.rows,
                                                   .inner = inner,
                                                   .alpha = static_cast<float>(op.alpha),
                                                   .beta = static_cast<float>(op.beta),
                                                   .addend = addend.data,
                                                   .addend_stride = addend.stride,
                                                   .result = op.c.data,
                                                   .result_stride = op.c.stride});
}

template void run(cuda::Stream&, const Gemm<float>&);
template void run(cuda::Stream&, const Gemm<BFloat16>&);
template void run(cuda::Stream&, const Gemm<BFloat16, float>&);

}  // namespace essh
