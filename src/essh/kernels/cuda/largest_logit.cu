#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/largest_logit.h"

namespace essh {
namespace {

constexpr int kLargestThreads = 256, kRun = 4096;

// A block takes kRun logits of a row.
__global__ void __launch_bounds__(kLargestThreads) largest_logit(LargestLogit op) {
  __shared__ LogitKey warps[kLargestThreads / 32];
  cuda::after_previous();
  const Index row = blockIdx.y, end = min(op.logits.cols, (Index{blockIdx.x} + 1) * kRun);
  LogitKey best = 0;
  for (Index c = Index{blockIdx.x} * kRun + threadIdx.x; c < end; c += kLargestThreads)
    best = max(best, logit_key(op.logits(row, c), static_cast<std::int32_t>(c)));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, step));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const auto other : warps) best = max(best, other);
  atomicMax(&op.keys[row], best);
}

__global__ void drawn_tokens(DrawnTokens op) {
  cuda::after_previous();
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= op.keys.size) return;
  op.tokens[i] = token_of_key(op.keys[i]);
  op.keys[i] = 0;
}

}  // namespace

void run(cuda::Stream& stream, const LargestLogit& op) {
  cuda::launch(stream, "largest logit",
               {.grid = dim3(cuda::blocks_for(op.logits.cols, kRun), static_cast<unsigned>(op.logits.rows)),
                .block = kLargestThreads,
                .early = true},
               largest_logit, op);
}

void run(cuda::Stream& stream, const DrawnTokens& op) {
  cuda::launch(stream, "drawn tokens",
               {.grid = cuda::blocks_for(op.keys.size, kLargestThreads), .block = kLargestThreads, .early = true},
               drawn_tokens, op);
}

}  // namespace essh
