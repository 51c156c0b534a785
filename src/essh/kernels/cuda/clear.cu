#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/clear.h"

namespace essh {

void run(cuda::Stream& stream, const Clear& op) {
  if (op.x.size == 0) return;
  cuda::check(cudaMemsetAsync(op.x.data, 0, static_cast<std::size_t>(op.x.size), stream.handle()), "clear");
}

}  // namespace essh
