#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/square_sum.h"

namespace essh {
namespace {

constexpr int kSquareSumThreads = 256;
constexpr Index kBlocks = 1024;

// Sum over the block, in thread 0, by a tree of fixed shape.
__device__ double block_sum(double value) {
  __shared__ double sums[kSquareSumThreads];
  sums[threadIdx.x] = value;
  for (int half = kSquareSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  return sums[0];
}

__device__ float squares(float4 x) {
  return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
}

// partial[block] = the block's share of the sum: whole vectors of four; block 0 also takes the unaligned head and tail.
__global__ void partial_sums(const float* x, Index before, Index vectors, Index size, double* partial) {
  const auto* x4 = reinterpret_cast<const float4*>(x + before);
  double sum = 0;
  for (Index i = Index{blockIdx.x} * kSquareSumThreads + threadIdx.x; i < vectors;
       i += Index{gridDim.x} * kSquareSumThreads)
    sum += static_cast<double>(squares(x4[i]));
  if (blockIdx.x == 0) {
    const Index behind = before + 4 * vectors + threadIdx.x;
    if (threadIdx.x < before) sum += static_cast<double>(x[threadIdx.x] * x[threadIdx.x]);
    if (behind < size) sum += static_cast<double>(x[behind] * x[behind]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_partials(const double* partial, int count, double* total) {
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kSquareSumThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace

template <class W>
void run(cuda::Stream& stream, const SquareSum<W>& op) {
  if (op.x.size == 0) return;
  const auto misaligned = static_cast<Index>(reinterpret_cast<std::uintptr_t>(op.x.data) / sizeof(float) % 4);
  const Index before = std::min(op.x.size, (4 - misaligned) % 4), vectors = (op.x.size - before) / 4;
  const auto blocks =
      static_cast<int>(std::clamp<Index>((vectors + kSquareSumThreads - 1) / kSquareSumThreads, 1, kBlocks));
  cuda::Scratch scratch(stream);
  double* partial = scratch.take<double>(blocks);
  cuda::launch(stream, "square_sum", {dim3(blocks), dim3(kSquareSumThreads)}, partial_sums, op.x.data, before, vectors,
               op.x.size, partial);
  cuda::launch(stream, "square_sum_end", {dim3(1), dim3(kSquareSumThreads)}, add_partials, partial, blocks, op.sum);
}

template void run(cuda::Stream&, const SquareSum<float>&);

}  // namespace essh
