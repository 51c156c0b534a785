#include "essh/kernels/column_squares.h"
#include "essh/kernels/cuda/device/column_sums.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh {
namespace {

constexpr int kColumnSquaresThreads = 128;

template <int N, class T>
__global__ void __launch_bounds__(kColumnSquaresThreads)
    squares_of_columns(Matrix<const T> x, Index rows_each, float* partial) {
  const Index c = (Index{blockIdx.x} * kColumnSquaresThreads + threadIdx.x) * N;
  if (c >= x.cols) return;
  const Index begin = Index{blockIdx.y} * rows_each, end = begin + rows_each < x.rows ? begin + rows_each : x.rows;
  float sums[N] = {};
  for (Index row = begin; row < end; ++row) {
    float values[N];
    cuda::load(x.row(row) + c, values);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += values[i] * values[i];
  }
#pragma unroll
  for (int i = 0; i < N; ++i) partial[Index{blockIdx.y} * x.cols + c + i] = sums[i];
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const ColumnSquares<T>& op) {
  if (op.x.rows == 0 || op.x.cols == 0) return;
  cuda::Scratch scratch(stream);
  constexpr Index kRowsEach = 64;
  const unsigned shares = cuda::blocks_for(op.x.rows, kRowsEach);
  float* partial = scratch.take<float>(Index{shares} * op.x.cols);
  cuda::with_width<T>(
      [&]<int N>() {
        cuda::launch(stream, "column_squares",
                     {dim3(cuda::blocks_for(op.x.cols, kColumnSquaresThreads * N), shares), kColumnSquaresThreads},
                     squares_of_columns<N, T>, op.x, kRowsEach, partial);
      },
      op.x);
  cuda::add_lines(stream, partial, shares, op.x.cols, op.sums.data);
}

template void run(cuda::Stream&, const ColumnSquares<float>&);
template void run(cuda::Stream&, const ColumnSquares<BFloat16>&);

}  // namespace essh
