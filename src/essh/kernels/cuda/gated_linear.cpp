#include "essh/kernels/gated_linear.h"

#include "essh/kernels/cuda/few_row_product.h"

namespace essh {
namespace {

bool run_fused(cuda::Stream& stream, const GatedLinear<BFloat16>& op) {
  const auto& weights = op.both.weights;
  const Index units = op.hidden.cols;
  if (op.both.bits != RowBits::Free || weights.empty() || weights[0].format != Format::BF16) return false;
  const auto first = weights[0].as<BFloat16>();
  const auto gate = first.top(units), up = weights.size() == 1 ? first.middle(units, units) : weights[1].as<BFloat16>();
  return cuda::multiply_few_rows<BFloat16>(stream,
                                           {.x = op.both.x, .weight = gate, .up = up, .y = op.hidden, .kept = op.kept});
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const GatedLinear<T>& op) {
  if constexpr (sizeof(T) == 2)
    if (run_fused(stream, op)) return;
  run_parts(stream, op);
}

template void run(cuda::Stream&, const GatedLinear<float>&);
template void run(cuda::Stream&, const GatedLinear<BFloat16>&);

}  // namespace essh
