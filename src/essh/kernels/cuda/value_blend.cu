#include "essh/kernels/cuda/device/blend.cuh"
#include "essh/kernels/cuda/device/column_sums.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"
#include "essh/kernels/value_blend.h"

namespace essh {
namespace {

// A group of lanes owns one channel of one token.
constexpr int kLanes = 8, kGroups = 32;

template <int N, class T>
__device__ float inverse_rms(const T* v0, Index width, float eps, int lane) {
  float squares = 0;
  for (Index p = lane * N; p < width; p += kLanes * N) {
    float x[N];
    cuda::load(v0 + p, x);
    squares += cuda::run_squares(x);
  }
  return cuda::inverse_rms(cuda::lanes_sum<kLanes>(squares), static_cast<int>(width), eps);
}

template <int N, class T>
__global__ void __launch_bounds__(kLanes* kGroups) value_blend_forward(ValueBlendForward<T> op) {
  cuda::after_previous();
  const int lane = threadIdx.x % kLanes;
  const Index channels = op.blend.size, count = op.v0.rows * channels;
  const Index item = Index{blockIdx.x} * kGroups + threadIdx.x / kLanes;
  const Index at = item < count ? item : count - 1;
  const Index row = at / channels, k = at % channels;
  const T* v0 = op.v0.row(row) + k * op.width;
  const float inverse = inverse_rms<N>(v0, op.width, static_cast<float>(op.eps), lane);
  const float scale = cuda::blend_scale(op.blend[k], inverse);
  if (item >= count) return;
  T* v = op.v.row(row) + k * op.width;
  for (Index p = lane * N; p < op.width; p += kLanes * N) {
    float x[N];
    cuda::load(v0 + p, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] *= scale;
    cuda::store(v + p, x);
  }
}

// A block loops over its share of the tokens with one group per channel; each group accumulates the gradient of its
// channel's blend.
template <int N, class T>
__global__ void __launch_bounds__(kLanes* kGroups) value_blend_backward(ValueBlendBackward<T> op, float* partial) {
  const int lane = threadIdx.x % kLanes;
  const Index channels = op.blend.size, k = Index{blockIdx.x} * kGroups + threadIdx.x / kLanes;
  const bool inside = k < channels;
  const Index channel = inside ? k : channels - 1;
  const float blend = op.blend[channel];
  float d_blend = 0;
  for (Index row = blockIdx.y; row < op.v0.rows; row += gridDim.y) {
    const T* v0 = op.v0.row(row) + channel * op.width;
    const T* d_v = op.d_v.row(row) + channel * op.width;
    const float inverse = inverse_rms<N>(v0, op.width, static_cast<float>(op.eps), lane);
    float along = 0;
    for (Index p = lane * N; p < op.width; p += kLanes * N) {
      float x[N], slopes[N];
      cuda::load(v0 + p, x);
      cuda::load(d_v + p, slopes);
#pragma unroll
      for (int i = 0; i < N; ++i) along += x[i] * slopes[i];
    }
    along = cuda::lanes_sum<kLanes>(along);
    d_blend += along * (inverse - 1.0f);
    const float scale = cuda::blend_scale(blend, inverse);
    const float shift = blend * inverse * inverse * inverse * along / static_cast<float>(op.width);
    if (!inside) continue;
    T* d_v0 = op.d_v0.row(row) + channel * op.width;
    for (Index p = lane * N; p < op.width; p += kLanes * N) {
      float x[N], slopes[N];
      cuda::load(v0 + p, x);
      cuda::load(d_v + p, slopes);
#pragma unroll
      for (int i = 0; i < N; ++i) slopes[i] = scale * slopes[i] - shift * x[i];
      cuda::store(d_v0 + p, slopes);
    }
  }
  if (inside && lane == 0) partial[Index{blockIdx.y} * channels + channel] = d_blend;
}

// Calls body.operator()<N>(): N is 4 if channels and rows consist of whole groups of 4, else 1.
template <class Body, class... Operands>
void with_runs(Index width, const Body& body, const Operands&... operands) {
  constexpr int kRun = 4;
  if (width % kRun == 0 && (cuda::aligned(operands, kRun) && ...))
    body.template operator()<kRun>();
  else
    body.template operator()<1>();
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const ValueBlendForward<T>& op) {
  with_runs(
      op.width,
      [&]<int N>() {
        cuda::launch(stream, "value_blend_forward",
                     {cuda::blocks_for(op.v0.rows * op.blend.size, kGroups), kLanes * kGroups, 0, true},
                     value_blend_forward<N, T>, op);
      },
      op.v0, op.v);
}

template <class T>
void run(cuda::Stream& stream, const ValueBlendBackward<T>& op) {
  if (op.v0.rows == 0) return;
  cuda::Scratch scratch(stream);
  const Index channels = op.blend.size;
  const unsigned shares = static_cast<unsigned>(std::min<Index>(op.v0.rows, Index{stream.multiprocessors()} * 8));
  float* partial = scratch.take<float>(Index{shares} * channels);
  with_runs(
      op.width,
      [&]<int N>() {
        cuda::launch(stream, "value_blend_backward",
                     {dim3(cuda::blocks_for(channels, kGroups), shares), kLanes * kGroups}, value_blend_backward<N, T>,
                     op, partial);
      },
      op.v0, op.d_v, op.d_v0);
  cuda::add_lines(stream, partial, shares, channels, op.d_blend.data);
}

template void run(cuda::Stream&, const ValueBlendForward<float>&);
template void run(cuda::Stream&, const ValueBlendForward<BFloat16>&);
template void run(cuda::Stream&, const ValueBlendBackward<float>&);
template void run(cuda::Stream&, const ValueBlendBackward<BFloat16>&);

}  // namespace essh
