#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"
#include "essh/kernels/round_weights.h"

namespace essh {
namespace {

constexpr int kRoundThreads = 256;

template <int N>
__global__ void round_packs(const float* from, BFloat16* to, Index packs) {
  const Index i = Index{blockIdx.x} * kRoundThreads + threadIdx.x;
  if (i >= packs) return;
  float values[N];
  cuda::load<N>(from + N * i, values);
  cuda::store<N>(to + N * i, values);
}

}  // namespace

void run(cuda::Stream& stream, const RoundWeights& op) {
  const Index packs = cuda::aligned(op.from, 4) && cuda::aligned(op.to, 4) ? op.from.size / 4 : 0;
  const Index done = 4 * packs, rest = op.from.size - done;
  cuda::launch(stream, "round_weights", {dim3(cuda::blocks_for(packs, kRoundThreads)), dim3(kRoundThreads)},
               round_packs<4>, op.from.data, op.to.data, packs);
  cuda::launch(stream, "round_weights", {dim3(cuda::blocks_for(rest, kRoundThreads)), dim3(kRoundThreads)},
               round_packs<1>, op.from.data + done, op.to.data + done, rest);
}

}  // namespace essh
