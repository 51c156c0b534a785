#include "essh/kernels/cuda/device/column_sums.cuh"
#include "essh/kernels/cuda/device/rows.cuh"
#include "essh/kernels/gates.h"

namespace essh {
namespace {

template <class T>
struct GateRows {
  GatesForward<T> op;

  template <int N>
  __device__ void at(Index row, Index c) const {
    float x[N], bias[N];
    const auto shifted = [&](const Matrix<const T>& logits, const Vector<const float>& b) {
      cuda::load(logits.row(row) + c, x);
      cuda::load(b.data + c, bias);
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] += bias[i];
    };
    shifted(op.write_logits, op.write_bias);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = 2.0f * cuda::sigmoid(x[i]);
    cuda::store(op.write.row(row) + c, x);
    shifted(op.read_logits, op.read_bias);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = 2.0f * cuda::sigmoid(x[i]);
    cuda::store(op.read.row(row) + c, x);
    shifted(op.clock_logits, op.clock_bias);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = cuda::softplus(x[i]);
    cuda::store(op.clock.row(row) + c, x);
  }
};

constexpr int kRowThreads = 8;

// A block owns 32 groups of N columns of one gate and a share of the rows.
template <int N, class T>
__global__ void __launch_bounds__(32 * kRowThreads) gates_backward(GatesBackward<T> op, float* partial) {
  const int gate = blockIdx.z;
  const Index c = (Index{blockIdx.x} * 32 + threadIdx.x) * N, columns = op.write.cols;
  const Matrix<const float> value = gate == 0 ? op.write : gate == 1 ? op.read : op.clock;
  const Matrix<const float> d_value = gate == 0 ? op.d_write : gate == 1 ? op.d_read : op.d_clock;
  const Matrix<T> d_logits = gate == 0 ? op.d_write_logits : gate == 1 ? op.d_read_logits : op.d_clock_logits;
  float sums[N] = {};
  if (c < columns) {
    for (Index row = Index{blockIdx.y} * kRowThreads + threadIdx.y; row < value.rows; row += gridDim.y * kRowThreads) {
      float x[N], d[N];
      cuda::load(value.row(row) + c, x);
      cuda::load(d_value.row(row) + c, d);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        // softplus'(s) = sigmoid(s) = 1 - e^{-clock}
        d[i] *= gate == 2 ? -expm1f(-x[i]) : x[i] * (1.0f - 0.5f * x[i]);
        sums[i] += d[i];
      }
      cuda::store(d_logits.row(row) + c, d);
    }
  }
  __shared__ float parts[kRowThreads][32][N];
#pragma unroll
  for (int i = 0; i < N; ++i) parts[threadIdx.y][threadIdx.x][i] = sums[i];
  __syncthreads();
  if (threadIdx.y != 0 || c >= columns) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    for (int j = 1; j < kRowThreads; ++j) sums[i] += parts[j][threadIdx.x][i];
    partial[(Index{blockIdx.y} * 3 + gate) * columns + c + i] = sums[i];
  }
}

// partial is [share][gate][column]. Eight threads per column sum the shares in turn; their sums are added in order.
__global__ void add_biases(const float* partial, Index shares, Index columns, float* write, float* read, float* clock) {
  __shared__ float parts[8][32];
  const Index i = Index{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (i < 3 * columns) {
    for (Index share = threadIdx.y; share < shares; share += 8) sum += partial[share * 3 * columns + i];
  }
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= 3 * columns) return;
  for (int j = 1; j < 8; ++j) sum += parts[j][threadIdx.x];
  float* to = i < columns ? write : i < 2 * columns ? read : clock;
  to[i % columns] += sum;
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const GatesForward<T>& op) {
  cuda::with_width<T>(
      [&]<int N>() { cuda::each_pack<N>(stream, "gates_forward", op.write.rows, op.write.cols, GateRows<T>{op}); },
      op.write_logits, op.read_logits, op.clock_logits, op.write, op.read, op.clock, op.write_bias, op.read_bias,
      op.clock_bias);
}

template <class T>
void run(cuda::Stream& stream, const GatesBackward<T>& op) {
  if (op.write.rows == 0 || op.write.cols == 0) return;
  cuda::Scratch scratch(stream);
  const Index columns = op.write.cols;
  const unsigned shares = std::min(cuda::blocks_for(op.write.rows, kRowThreads * 4), 256u);
  float* partial = scratch.take<float>(Index{shares} * 3 * columns);
  const auto launch_runs = [&]<int N>() {
    cuda::launch(stream, "gates_backward", {dim3(cuda::blocks_for(columns, 32 * N), shares, 3), dim3(32, kRowThreads)},
                 gates_backward<N, T>, op, partial);
  };
  const auto runs_of_4 = [](const auto&... m) { return (cuda::aligned(m, 4) && ...); };
  if (runs_of_4(op.write, op.read, op.clock, op.d_write, op.d_read, op.d_clock, op.d_write_logits, op.d_read_logits,
                op.d_clock_logits))
    launch_runs.template operator()<4>();
  else
    launch_runs.template operator()<1>();
  cuda::launch(stream, "gates_biases", {cuda::blocks_for(3 * columns, 32), dim3(32, 8)}, add_biases, partial,
               Index{shares}, columns, op.d_write_bias.data, op.d_read_bias.data, op.d_clock_bias.data);
}

template void run(cuda::Stream&, const GatesForward<float>&);
template void run(cuda::Stream&, const GatesForward<BFloat16>&);
template void run(cuda::Stream&, const GatesBackward<float>&);
template void run(cuda::Stream&, const GatesBackward<BFloat16>&);

}  // namespace essh
