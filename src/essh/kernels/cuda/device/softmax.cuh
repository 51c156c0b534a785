#pragma once
#include "essh/kernels/cuda/device/number.cuh"

namespace essh::cuda {

// Maximum of some elements and their sum of e^{x - maximum}.
struct SoftmaxSum {
  float largest = -INFINITY;
  float sum = 0;
};

// Over a whole row of logits, the same in every thread of the block.
template <int N, class T>
__device__ SoftmaxSum row_softmax(const T* row, Index count, float* shared) {
  SoftmaxSum mine;
  for (Index c = Index{threadIdx.x} * N; c < count; c += Index{blockDim.x} * N) {
    float x[N];
    load(row + c, x);
    float largest = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, x[i]);
    if (largest > mine.largest) {
      mine.sum *= __expf(mine.largest - largest);
      mine.largest = largest;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) mine.sum += __expf(x[i] - mine.largest);
  }
  const float largest = block_max(mine.largest, shared);
  // A thread without elements has sum 0; its factor may be NaN.
  const float scaled = mine.sum > 0 ? mine.sum * __expf(mine.largest - largest) : 0.0f;
  return {largest, block_sum(scaled, shared)};
}

}  // namespace essh::cuda
