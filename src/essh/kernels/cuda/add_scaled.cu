#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/add_scaled.h"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh {
namespace {

constexpr int kAddThreads = 256;

template <int N, class E>
__global__ void add_packs(const float* x, const float* y, float factor, E* sum, Index packs) {
  const Index i = Index{blockIdx.x} * kAddThreads + threadIdx.x;
  if (i >= packs) return;
  float first[N], second[N];
  cuda::load<N>(x + N * i, first);
  cuda::load<N>(y + N * i, second);
#pragma unroll
  for (int k = 0; k < N; ++k) first[k] = __fmaf_rn(factor, second[k], first[k]);
  cuda::store<N>(sum + N * i, first);
}

template <class E>
void add_scaled(cuda::Stream& stream, const AddScaled<E>& op) {
  const bool wide = cuda::aligned(op.x, 4) && cuda::aligned(op.y, 4) && cuda::aligned(op.sum, 4);
  const Index packs = wide ? op.sum.size / 4 : 0;
  const Index done = 4 * packs, rest = op.sum.size - done;
  cuda::launch(stream, "add_scaled", {dim3(cuda::blocks_for(packs, kAddThreads)), dim3(kAddThreads)}, add_packs<4, E>,
               op.x.data, op.y.data, op.factor, op.sum.data, packs);
  cuda::launch(stream, "add_scaled", {dim3(cuda::blocks_for(rest, kAddThreads)), dim3(kAddThreads)}, add_packs<1, E>,
               op.x.data + done, op.y.data + done, op.factor, op.sum.data + done, rest);
}

}  // namespace

void run(cuda::Stream& stream, const AddScaled<float>& op) {
  add_scaled(stream, op);
}
void run(cuda::Stream& stream, const AddScaled<BFloat16>& op) {
  add_scaled(stream, op);
}

}  // namespace essh
