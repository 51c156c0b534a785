#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/pack.cuh"
#include "essh/kernels/round_weights.h"

namespace essh {
namespace {

constexpr int kThreads = 256;

__global__ void round_vectors(const float4* from, uint2* to, Index vectors) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i < vectors) to[i] = cuda::rounded(from[i]);
}

__global__ void round_elements(const float* from, std::uint16_t* to, Index size) {
  const Index i = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (i < size) to[i] = cuda::rounded(from[i]);
}

}  // namespace

void run(cuda::Stream& stream, const RoundWeights& op) {
  const Index vectors = cuda::is_aligned(op.from.data, 16) && cuda::is_aligned(op.to.data, 8) ? op.from.size / 4 : 0;
  const Index rest = op.from.size - 4 * vectors;
  cuda::launch(stream, "round_weights", {dim3(cuda::blocks_for(vectors, kThreads)), dim3(kThreads)}, round_vectors,
               reinterpret_cast<const float4*>(op.from.data), reinterpret_cast<uint2*>(op.to.data), vectors);
  cuda::launch(stream, "round_weights", {dim3(cuda::blocks_for(rest, kThreads)), dim3(kThreads)}, round_elements,
               op.from.data + 4 * vectors, reinterpret_cast<std::uint16_t*>(op.to.data) + 4 * vectors, rest);
}

}  // namespace essh
