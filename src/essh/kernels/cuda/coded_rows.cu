#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/coded_part.cuh"

namespace essh {
namespace {

// One warp per head of a row; a lane takes four numbers.
constexpr int kThreads = 128, kLaneNumbers = 4;

template <class T>
__global__ void store_rows(StoreCodedRows<T> op, int heads) {
  const Index item = (Index{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, head_dim = static_cast<int>(op.head_dim);
  if (item >= op.from.rows * heads) return;
  const Index row = item / heads, head = item % heads;
  const T* from = op.from.row(row) + head * head_dim;
  float x[kLaneNumbers];
#pragma unroll
  for (int i = 0; i < kLaneNumbers; ++i) {
    const int c = lane * kLaneNumbers + i;
    x[i] = c < head_dim ? cuda::widen(from[c]) : 0.0f;
  }
  std::byte* to = op.to + row * coded_row_bytes(op.from.cols, head_dim);
  cuda::device::store_coded<32>(x, to + head * head_dim, to + op.from.cols + head * 2, lane, head_dim);
  if (head == 0 && lane == 0) cuda::device::pad_coded(to, op.from.cols, head_dim);
}

template <class T>
__global__ void load_rows(LoadCodedRows<T> op, int heads) {
  const Index item = (Index{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, head_dim = static_cast<int>(op.head_dim);
  if (item >= op.to.rows * heads) return;
  const Index row = item / heads, head = item % heads;
  const std::byte* from = op.from + row * coded_row_bytes(op.to.cols, head_dim);
  const auto part =
      cuda::device::CodedPart<kLaneNumbers>::load(from + head * head_dim, from + op.to.cols + head * 2, lane, head_dim);
  float x[kLaneNumbers];
  part.unpack(x);
  T* to = op.to.row(row) + head * head_dim;
#pragma unroll
  for (int i = 0; i < kLaneNumbers; ++i) {
    const int c = lane * kLaneNumbers + i;
    if (c < head_dim) to[c] = cuda::narrow<T>(part.scale() * x[i]);
  }
}

template <class Op>
void launch_rows(cuda::Stream& stream, const char* name, void (*kernel)(Op, int), const Op& op, Index rows,
                 Index columns) {
  ESSH_ASSERT(op.head_dim % 4 == 0 && op.head_dim <= 32 * kLaneNumbers);
  const Index heads = columns / op.head_dim;
  cuda::launch(stream, name, {cuda::blocks_for(rows * heads * 32, kThreads), kThreads}, kernel, op,
               static_cast<int>(heads));
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const StoreCodedRows<T>& op) {
  launch_rows(stream, "store coded rows", store_rows<T>, op, op.from.rows, op.from.cols);
}
template <class T>
void run(cuda::Stream& stream, const LoadCodedRows<T>& op) {
  launch_rows(stream, "load coded rows", load_rows<T>, op, op.to.rows, op.to.cols);
}

template void run(cuda::Stream&, const StoreCodedRows<float>&);
template void run(cuda::Stream&, const StoreCodedRows<BFloat16>&);
template void run(cuda::Stream&, const LoadCodedRows<float>&);
template void run(cuda::Stream&, const LoadCodedRows<BFloat16>&);

}  // namespace essh
