#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/running_mean.h"

namespace essh {
namespace {

constexpr int kRunningMeanThreads = 256;

__global__ void update_mean(const double* sums, double* mean, Index size, double memory, double count) {
  const Index i = Index{blockIdx.x} * kRunningMeanThreads + threadIdx.x;
  if (i < size) mean[i] = memory * mean[i] + (1 - memory) * sums[i] / count;
}

}  // namespace

void run(cuda::Stream& stream, const RunningMean& op) {
  cuda::launch(stream, "running_mean",
               {dim3(cuda::blocks_for(op.mean.size, kRunningMeanThreads)), dim3(kRunningMeanThreads)}, update_mean,
               op.sums.data, op.mean.data, op.mean.size, op.memory, op.count);
}

}  // namespace essh
