#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/loss_sum.h"

namespace essh {
namespace {

constexpr int kLossSumThreads = 512;

__global__ void sum_losses(const float* label, const float* divergence, const std::int32_t* targets, Index size,
                           double* totals) {
  __shared__ double sums[3][kLossSumThreads];
  double label_sum = 0, divergence_sum = 0, count = 0;
  for (Index r = threadIdx.x; r < size; r += kLossSumThreads) {
    label_sum += static_cast<double>(label[r]);
    if (divergence != nullptr) divergence_sum += static_cast<double>(divergence[r]);
    count += targets[r] != kIgnoredTarget ? 1 : 0;
  }
  sums[0][threadIdx.x] = label_sum;
  sums[1][threadIdx.x] = divergence_sum;
  sums[2][threadIdx.x] = count;
  for (int half = kLossSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      for (auto& sum : sums) sum[threadIdx.x] += sum[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) totals[i] += sums[i][0];
  }
}

}  // namespace

template <class W>
void run(cuda::Stream& stream, const LossSum<W>& op) {
  if (op.label.size == 0) return;
  cuda::launch(stream, "loss_sum", {dim3(1), dim3(kLossSumThreads)}, sum_losses, op.label.data, op.divergence.data,
               op.targets.data, op.label.size, op.totals.data);
}

template void run(cuda::Stream&, const LossSum<float>&);

}  // namespace essh
