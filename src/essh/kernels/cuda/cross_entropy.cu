#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/cuda/device/softmax.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh {
namespace {

constexpr int kCrossEntropyThreads = 512;

// One block per row, last row first: the end of the logits is still in the L2 cache after the product that wrote them.
template <int N, class T>
__global__ void __launch_bounds__(kCrossEntropyThreads) cross_entropy_rows(CrossEntropy<T> op) {
  __shared__ float shared[kCrossEntropyThreads / 32];
  const Index row = op.logits.rows - 1 - blockIdx.x, count = op.logits.cols;
  const std::int32_t target = op.targets[row];
  const T* logits = op.logits.row(row);
  if (target == kIgnoredTarget) {
    if (threadIdx.x == 0) op.loss[row] = 0;
    if (op.d_logits.empty()) return;
    const float zeros[N] = {};
    for (Index c = Index{threadIdx.x} * N; c < count; c += kCrossEntropyThreads * N)
      cuda::store(op.d_logits.row(row) + c, zeros);
    return;
  }
  const auto softmax = cuda::row_softmax<N>(logits, count, shared);
  if (threadIdx.x == 0) op.loss[row] = logf(softmax.sum) + softmax.largest - cuda::widen(logits[target]);
  if (op.d_logits.empty()) return;
  __syncthreads();  // the target's logit is read before it may be overwritten
  const float scale = static_cast<float>(op.scale), factor = scale / softmax.sum;
  T* d_logits = op.d_logits.row(row);
  for (Index c = Index{threadIdx.x} * N; c < count; c += kCrossEntropyThreads * N) {
    float x[N];
    cuda::load(logits + c, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = __expf(x[i] - softmax.largest) * factor - (c + i == target ? scale : 0.0f);
    cuda::store(d_logits + c, x);
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const CrossEntropy<T>& op) {
  cuda::with_width<T>(
      [&]<int N>() {
        cuda::launch(stream, "cross_entropy", {static_cast<unsigned>(op.logits.rows), kCrossEntropyThreads},
                     cross_entropy_rows<N, T>, op);
      },
      op.logits, op.d_logits);
}

template void run(cuda::Stream&, const CrossEntropy<float>&);
template void run(cuda::Stream&, const CrossEntropy<BFloat16>&);

}  // namespace essh
