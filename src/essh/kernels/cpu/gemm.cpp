#include "essh/kernels/gemm.h"

#include "essh/kernels/cpu/few_rows.h"
#include "essh/kernels/cpu/packed_product.h"

namespace essh {

template <class T, class Out>
void run(cpu::Stream& stream, const Gemm<T, Out>& op) {
  if (op.c.rows == 0 || op.c.cols == 0) return;
  const bool transpose_a = op.transpose_a == Transpose::Yes, transpose_b = op.transpose_b == Transpose::Yes;
  const Index inner = transpose_a ? op.a.rows : op.a.cols;
  ESSH_ASSERT(inner == (transpose_b ? op.b.cols : op.b.rows));
  cpu::ProductResult<T> result{
      .y = op.c, .scale = static_cast<T>(op.alpha), .beta = static_cast<T>(op.beta), .addend = op.addend};
  if (op.beta == 0)
    result.addend = {};
  else if (op.addend.empty())
    result.addend = op.c;
  const cpu::Strided<T> left =
      transpose_a ? cpu::Strided<T>{op.a.data, 1, op.a.stride} : cpu::Strided<T>{op.a.data, op.a.stride, 1};
  const Weight weight(op.b);
  if (!transpose_b)
    cpu::packed_product<T>(stream, left, inner, cpu::MatrixSlivers<T>(op.b), result);
  else if (!transpose_a && op.c.rows <= cpu::kFewRows)
    cpu::few_rows<T>(stream, op.a, {&weight, 1}, result);
  else
    cpu::packed_product<T>(stream, left, inner, cpu::WeightSlivers<T>({&weight, 1}), result);
}

template void run(cpu::Stream&, const Gemm<float>&);
template void run(cpu::Stream&, const Gemm<double>&);

}  // namespace essh
