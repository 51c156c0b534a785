#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/row_pointers.h"

namespace essh {
namespace {

template <class T>
__global__ void row_pointers(RowPointers<T> op) {
  cuda::after_previous();
  const Index row = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row < op.matrix.rows) op.pointers[row] = op.matrix.row(row);
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const RowPointers<T>& op) {
  cuda::launch(stream, "row pointers", {cuda::blocks_for(op.matrix.rows, 128), 128, 0, true}, row_pointers<T>, op);
}

template void run(cuda::Stream&, const RowPointers<BFloat16>&);
template void run(cuda::Stream&, const RowPointers<float>&);

}  // namespace essh
