#include <cub/device/device_radix_sort.cuh>

#include "essh/kernels/cuda/device/rows.cuh"
#include "essh/kernels/embedding.h"

namespace essh {
namespace {

template <class T, class X>
struct EmbeddingRows {
  Vector<const std::int32_t> tokens;
  Matrix<const T> table;
  Matrix<X> x;

  template <int N>
  __device__ void at(Index row, Index c) const {
    float values[N];
    cuda::load(table.row(tokens[row]) + c, values);
    cuda::store(x.row(row) + c, values);
  }
};

__global__ void number_rows(Index count, int* rows) {
  const Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) rows[i] = static_cast<int>(i);
}

// The rows of one token are contiguous and in order. The thread at the first of them adds them all.
template <class T>
__global__ void add_rows(EmbeddingBackward<T> op, const std::int32_t* tokens, const int* rows) {
  const Index i = blockIdx.x, count = op.tokens.size;
  const std::int32_t token = tokens[i];
  if (i > 0 && tokens[i - 1] == token) return;
  Index end = i + 1;
  while (end < count && tokens[end] == token) ++end;
  for (Index c = threadIdx.x; c < op.d_x.cols; c += blockDim.x) {
    float sum = 0;
#pragma unroll 4
    for (Index k = i; k < end; ++k) sum += cuda::widen(op.d_x(rows[k], c));
    op.d_table(token, c) += sum;
  }
}

}  // namespace

template <class T, class X>
void run(cuda::Stream& stream, const EmbeddingForward<T, X>& op) {
  const EmbeddingRows<T, X> forward{op.tokens, op.table.template as<T>(), op.x};
  // Not early: kernels of the pass that begins here may start before the one before them has ended, and none before
  // all earlier passes have.
  cuda::with_width<X>(
      [&]<int N>() { cuda::each_pack<N>(stream, "embedding_forward", op.tokens.size, op.x.cols, forward, false); },
      forward.table, op.x);
}

// Sorted by token, so that every sum keeps the order of the rows; atomics would not.
template <class T>
void run(cuda::Stream& stream, const EmbeddingBackward<T>& op) {
  const Index count = op.tokens.size;
  if (count == 0) return;
  cuda::Scratch scratch(stream);
  const int items = static_cast<int>(count);
  auto* sorted = scratch.take<std::int32_t>(count);
  auto *rows = scratch.take<int>(count), *sorted_rows = scratch.take<int>(count);
  cuda::launch(stream, "number_rows", {cuda::blocks_for(count, 256), 256}, number_rows, count, rows);
  std::size_t bytes = 0;
  cuda::check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, op.tokens.data, sorted, rows, sorted_rows, items, 0, 31,
                                              stream.handle()),
              "embedding_backward sort");
  void* temporary = scratch.take<std::byte>(static_cast<Index>(bytes));
  cuda::check(cub::DeviceRadixSort::SortPairs(temporary, bytes, op.tokens.data, sorted, rows, sorted_rows, items, 0, 31,
                                              stream.handle()),
              "embedding_backward sort");
  cuda::launch(stream, "embedding_backward", {static_cast<unsigned>(count), 256}, add_rows<T>, op, sorted, sorted_rows);
}

template void run(cuda::Stream&, const EmbeddingForward<float>&);
template void run(cuda::Stream&, const EmbeddingForward<BFloat16>&);
template void run(cuda::Stream&, const EmbeddingForward<BFloat16, float>&);
template void run(cuda::Stream&, const EmbeddingBackward<float>&);
template void run(cuda::Stream&, const EmbeddingBackward<BFloat16>&);

}  // namespace essh
