#include "essh/kernels/gated_linear.h"

#include "essh/kernels/cuda/few_row_product.h"

namespace essh {

bool cuda::multiply_few_rows(Stream& stream, const GatedLinear<BFloat16>& op, FewRowProduct<BFloat16> of) {
  const auto& weights = op.both.weights;
  const Index units = op.hidden.cols;
  if (op.both.bits != RowBits::Free || weights.empty() || weights[0].format != Format::BF16) return false;
  const auto first = weights[0].as<BFloat16>();
  of.weight = first.top(units);
  of.up = weights.size() == 1 ? first.middle(units, units) : weights[1].as<BFloat16>();
  of.y = op.hidden;
  of.kept = op.kept;
  return multiply_few_rows(stream, of);
}

template <class T>
void run(cuda::Stream& stream, const GatedLinear<T>& op) {
  if constexpr (sizeof(T) == 2)
    if (cuda::multiply_few_rows(stream, op, {.x = op.both.x})) return;
  run_parts(stream, op);
}

template void run(cuda::Stream&, const GatedLinear<float>&);
template void run(cuda::Stream&, const GatedLinear<BFloat16>&);

}  // namespace essh
