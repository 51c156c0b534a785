#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/number.cuh"
#include "essh/kernels/rope.h"

namespace essh {
namespace {

constexpr int kRopeThreads = 128;

// One block rotates one row. Angles are reduced in double: at position 100,000 a float has too few digits.
template <class T>
__global__ void __launch_bounds__(kRopeThreads) rotate(Rope<T> op) {
  extern __shared__ float2 turns[];
  cuda::after_previous();
  const Index row = blockIdx.x, half = op.head_dim / 2;
  const Index first = op.first.empty() ? 0 : op.first[row / op.length];
  const double position = static_cast<double>(first + row % op.length);
  for (Index i = threadIdx.x; i < half; i += kRopeThreads) {
    const double angle =
        position * exp2(-2.0 * static_cast<double>(i) / static_cast<double>(op.head_dim) * log2(op.theta));
    double s, c;
    sincos(angle, &s, &c);
    turns[i] = {static_cast<float>(c), static_cast<float>(op.rotation == Rotation::Forward ? s : -s)};
  }
  __syncthreads();
  T* x = op.x.row(row);
  for (Index pair = threadIdx.x; pair < op.x.cols / 2; pair += kRopeThreads) {
    const Index column = pair / half * op.head_dim + pair % half;
    const float2 turn = turns[pair % half];
    const float a = cuda::widen(x[column]), b = cuda::widen(x[column + half]);
    x[column] = cuda::narrow<T>(a * turn.x - b * turn.y);
    x[column + half] = cuda::narrow<T>(b * turn.x + a * turn.y);
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const Rope<T>& op) {
  cuda::launch(stream, "rope",
               {static_cast<unsigned>(op.x.rows), kRopeThreads,
                static_cast<std::size_t>(op.head_dim / 2) * sizeof(float2), true},
               rotate<T>, op);
}

template void run(cuda::Stream&, const Rope<float>&);
template void run(cuda::Stream&, const Rope<BFloat16>&);

}  // namespace essh
