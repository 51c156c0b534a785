#include "essh/kernels/linear.h"

#include "essh/kernels/cpu/few_rows.h"
#include "essh/kernels/cpu/packed_product.h"

namespace essh {

template <class T, class Out>
void run(cpu::Stream& stream, const Linear<T, Out>& op) {
  Index outputs = 0;
  for (const Weight& weight : op.weights) {
    ESSH_ASSERT(weight.cols == op.x.cols);
    outputs += weight.rows;
  }
  ESSH_ASSERT(op.y.rows == op.x.rows && op.y.cols == outputs);
  if (op.y.rows == 0 || outputs == 0) return;
  const cpu::ProductResult<T> result{
      .y = op.y, .scale = static_cast<T>(op.scale), .beta = op.addend.empty() ? T(0) : T(1), .addend = op.addend};
  if (op.x.rows <= cpu::kFewRows)
    cpu::few_rows<T>(stream, op.x, op.weights, result);
  else
    cpu::packed_product<T>(stream, {op.x.data, op.x.stride, 1}, op.x.cols, cpu::WeightSlivers<T>(op.weights), result);
}

template void run(cpu::Stream&, const Linear<float>&);
template void run(cpu::Stream&, const Linear<double>&);

}  // namespace essh
