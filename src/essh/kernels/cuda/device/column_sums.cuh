#pragma once
#include "essh/device/cuda/launch.cuh"

namespace essh::cuda {

// to[c] += lines[0][c] + lines[1][c] + ..., in this order: the final stage of a reduction over rows.
template <class Sum>
__global__ void add_lines_kernel(const float* lines, Index count, Index width, Sum* to) {
  // Eight threads share a column, each sums every eighth line; their sums are added in order.
  constexpr int kShare = 8;
  __shared__ Sum parts[kShare][32];
  const Index c = Index{blockIdx.x} * 32 + threadIdx.x;
  Sum sum = 0;
  if (c < width) {
    for (Index line = threadIdx.y; line < count; line += kShare) sum += static_cast<Sum>(lines[line * width + c]);
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  for (int i = 1; i < kShare; ++i) sum += parts[i][threadIdx.x];
  to[c] += sum;
}

template <class Sum>
void add_lines(Stream& stream, const float* lines, Index count, Index width, Sum* to) {
  launch(stream, "add_lines", {blocks_for(width, 32), dim3(32, 8)}, add_lines_kernel<Sum>, lines, count, width, to);
}

}  // namespace essh::cuda
