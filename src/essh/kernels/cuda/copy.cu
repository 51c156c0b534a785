#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/copy.h"
#include "essh/kernels/cuda/device/number.cuh"

namespace essh {
namespace {

template <class T>
__global__ void fill(Fill<T> op, T value) {
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < op.x.rows * op.x.cols;
       i += Index{gridDim.x} * blockDim.x)
    op.x(i / op.x.cols, i % op.x.cols) = value;
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const Copy<T>& op) {
  if (op.from.rows == 0 || op.from.cols == 0) return;
  cuda::check(cudaMemcpy2DAsync(op.to.data, static_cast<std::size_t>(op.to.stride) * sizeof(T), op.from.data,
                                static_cast<std::size_t>(op.from.stride) * sizeof(T),
                                static_cast<std::size_t>(op.from.cols) * sizeof(T),
                                static_cast<std::size_t>(op.from.rows), cudaMemcpyDeviceToDevice, stream.handle()),
              "copy");
}

template <class T>
void run(cuda::Stream& stream, const Fill<T>& op) {
  const Index count = op.x.rows * op.x.cols;
  if (count == 0) return;
  if (op.value == 0 && op.x.stride == op.x.cols) {
    cuda::check(cudaMemsetAsync(op.x.data, 0, static_cast<std::size_t>(count) * sizeof(T), stream.handle()), "fill");
    return;
  }
  const unsigned blocks = std::min(cuda::blocks_for(count, 256), static_cast<unsigned>(stream.multiprocessors() * 16));
  cuda::launch(stream, "fill", {blocks, 256}, fill<T>, op, T(static_cast<float>(op.value)));
}

template void run(cuda::Stream&, const Copy<float>&);
template void run(cuda::Stream&, const Copy<BFloat16>&);
template void run(cuda::Stream&, const Fill<float>&);
template void run(cuda::Stream&, const Fill<BFloat16>&);

}  // namespace essh
