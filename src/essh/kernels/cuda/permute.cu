#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/permute.h"

namespace essh {
namespace {

constexpr int kPermuteThreads = 256;

__global__ void permute_rows(Matrix<const float> from, const std::int32_t* order, Matrix<float> to) {
  const float* source = from.data + order[blockIdx.x] * from.stride;
  float* target = to.data + blockIdx.x * to.stride;
  for (Index c = threadIdx.x; c < to.cols; c += kPermuteThreads) target[c] = source[c];
}

__global__ void permute_columns(Matrix<const float> from, const std::int32_t* order, Matrix<float> to) {
  const float* source = from.data + blockIdx.x * from.stride;
  float* target = to.data + blockIdx.x * to.stride;
  for (Index c = threadIdx.x; c < to.cols; c += kPermuteThreads) target[c] = source[order[c]];
}

}  // namespace

template <class W>
void run(cuda::Stream& stream, const PermuteRows<W>& op) {
  cuda::launch(stream, "permute_rows", {dim3(cuda::blocks_for(op.to.rows, 1)), dim3(kPermuteThreads)}, permute_rows,
               op.from, op.order.data, op.to);
}

template <class W>
void run(cuda::Stream& stream, const PermuteColumns<W>& op) {
  cuda::launch(stream, "permute_columns", {dim3(cuda::blocks_for(op.to.rows, 1)), dim3(kPermuteThreads)},
               permute_columns, op.from, op.order.data, op.to);
}

template void run(cuda::Stream&, const PermuteRows<float>&);
template void run(cuda::Stream&, const PermuteColumns<float>&);

}  // namespace essh
