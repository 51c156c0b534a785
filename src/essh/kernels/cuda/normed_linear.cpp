#include "essh/kernels/normed_linear.h"

#include "essh/kernels/cuda/few_row_product.h"

namespace essh {
namespace {

// The product, if the norm was begun and there is a kernel that ends it; else false.
template <class Op>
bool ends_norm(cuda::Stream& stream, const RmsNormForward<BFloat16>& norm, const NextNorm<BFloat16>& begun,
               const Op& op) {
  if (begun.parts == 0) return false;
  const cuda::FewRowProduct<BFloat16> of{
      .x = begun.y, .squares = begun.squares.top(begun.parts), .eps = static_cast<float>(norm.eps)};
  return cuda::multiply_few_rows(stream, op, of);
}

}  // namespace

template <class T, class X>
void run(cuda::Stream& stream, const NormedLinear<T, X>& op) {
  if constexpr (sizeof(X) == 2)
    if (ends_norm(stream, op.norm, op.begun, op.linear)) return;
  run_parts(stream, op);
}
template <class T, class X>
void run(cuda::Stream& stream, const NormedGatedLinear<T, X>& op) {
  if constexpr (sizeof(X) == 2)
    if (ends_norm(stream, op.norm, op.begun, op.gated)) return;
  run_parts(stream, op);
}

template void run(cuda::Stream&, const NormedLinear<float>&);
template void run(cuda::Stream&, const NormedLinear<BFloat16>&);
template void run(cuda::Stream&, const NormedLinear<BFloat16, float>&);
template void run(cuda::Stream&, const NormedGatedLinear<float>&);
template void run(cuda::Stream&, const NormedGatedLinear<BFloat16>&);
template void run(cuda::Stream&, const NormedGatedLinear<BFloat16, float>&);

}  // namespace essh
