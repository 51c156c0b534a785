#include "essh/kernels/rms_norm.h"

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/column_sums.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh {
namespace {

constexpr int kRowsPerBlock = 4;  // a warp each

template <int N, class T>
__global__ void __launch_bounds__(32 * kRowsPerBlock) forward(RmsNormForward<T> op) {
  const Index row = Index{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= op.x.rows) return;
  const T* x = op.x.row(row);
  float squares = 0;
  for (Index c = lane * N; c < op.x.cols; c += 32 * N) {
    float values[N];
    cuda::load(x + c, values);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += values[i] * values[i];
  }
  squares = cuda::warp_sum(squares);
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(op.x.cols) + static_cast<float>(op.eps));
  if (lane == 0 && !op.inverse_rms.empty()) op.inverse_rms[row] = inverse;
  T* y = op.y.row(row);
  for (Index c = lane * N; c < op.x.cols; c += 32 * N) {
    float values[N], gain[N];
    cuda::load(x + c, values);
    cuda::load(op.gain.data + c, gain);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = gain[i] * values[i] * inverse;
    cuda::store(y + c, values);
  }
}

// Every warp takes rows in turn and keeps its share of d_gain in registers, `Packs` runs of N columns per lane; the warps
// of a block are added in order at the end.
template <int N, int Packs, class T>
__global__ void __launch_bounds__(32 * kRowsPerBlock) backward(RmsNormBackward<T> op, float* partial) {
  extern __shared__ float lines[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Index width = op.x.cols;
  float sums[Packs][N] = {};
  for (Index row = Index{blockIdx.x} * kRowsPerBlock + warp; row < op.x.rows; row += Index{gridDim.x} * kRowsPerBlock) {
    const T *x = op.x.row(row), *d_y = op.d_y.row(row);
    T* d_x = op.d_x.row(row);
    const float inverse = op.inverse_rms[row];
    using Run = cuda::Pack<T, N>;
    Run values[Packs], slopes[Packs];
    float along = 0;
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack) {
      const Index c = (pack * 32 + lane) * N;
      if (c >= width) break;
      values[pack] = *reinterpret_cast<const Run*>(x + c);
      slopes[pack] = *reinterpret_cast<const Run*>(d_y + c);
    }
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack) {
      const Index c = (pack * 32 + lane) * N;
      if (c >= width) break;
      float gain[N];
      cuda::load(op.gain.data + c, gain);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float product = cuda::widen(values[pack].items[i]) * cuda::widen(slopes[pack].items[i]);
        along += product * gain[i];
        sums[pack][i] += product * inverse;
      }
    }
    const float shift = cuda::warp_sum(along) * inverse * inverse / static_cast<float>(width);
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack) {
      const Index c = (pack * 32 + lane) * N;
      if (c >= width) break;
      float gain[N], result[N];
      cuda::load(op.gain.data + c, gain);
      cuda::load(d_x + c, result);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        result[i] +=
            inverse * (gain[i] * cuda::widen(slopes[pack].items[i]) - cuda::widen(values[pack].items[i]) * shift);
      }
      cuda::store(d_x + c, result);
    }
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int pack = 0; pack < Packs; ++pack) {
    const Index c = (pack * 32 + lane) * N;
    if (c >= width) break;
#pragma unroll
    for (int i = 0; i < N; ++i) lines[warp * width + c + i] = sums[pack][i];
  }
  __syncthreads();
  for (Index c = threadIdx.x; c < width; c += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < kRowsPerBlock; ++w) sum += lines[w * width + c];
    partial[Index{blockIdx.x} * width + c] = sum;
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const RmsNormForward<T>& op) {
  cuda::with_width<T>(
      [&]<int N>() {
        cuda::launch(stream, "rms_norm_forward",
                     {cuda::blocks_for(op.x.rows, kRowsPerBlock), 32 * kRowsPerBlock}, forward<N, T>, op);
      },
      op.x, op.y, op.gain);
}

template <class T>
void run(cuda::Stream& stream, const RmsNormBackward<T>& op) {
  if (op.x.rows == 0) return;
  cuda::Scratch scratch(stream);
  const unsigned blocks =
      std::min(cuda::blocks_for(op.x.rows, kRowsPerBlock), static_cast<unsigned>(stream.multiprocessors() * 6));
  const Index width = op.x.cols;
  float* partial = op.d_gain.empty() ? nullptr : scratch.take<float>(blocks * width);
  const std::size_t shared = partial ? static_cast<std::size_t>(kRowsPerBlock * width) * sizeof(float) : 0;
  constexpr Index kMostPacks = 16;
  cuda::with_width<T>(
      [&]<int N>() {
        const auto launch_packs = [&]<int Packs>() {
          cuda::launch(stream, "rms_norm_backward", {blocks, 32 * kRowsPerBlock, shared}, backward<N, Packs, T>, op,
                       partial);
        };
        const Index packs = (width + 32 * N - 1) / (32 * N);
        if constexpr (N == 1) {
          // Misaligned rows are for tests and odd sizes: as many packs as they take.
          if (packs > 64) fail(ErrorKind::Unsupported, "rows of {} elements must be aligned to 16 bytes on CUDA", width);
          packs <= kMostPacks ? launch_packs.template operator()<kMostPacks>() : launch_packs.template operator()<64>();
        } else {
          if (packs > kMostPacks) fail(ErrorKind::Unsupported, "rows of {} elements are too long on CUDA", width);
          packs <= 4   ? launch_packs.template operator()<4>()
          : packs <= 8 ? launch_packs.template operator()<8>()
                       : launch_packs.template operator()<kMostPacks>();
        }
      },
      op.x, op.d_y, op.d_x, op.gain);
  if (partial) cuda::add_lines(stream, partial, blocks, width, op.d_gain.data);
}

template void run(cuda::Stream&, const RmsNormForward<float>&);
template void run(cuda::Stream&, const RmsNormForward<BFloat16>&);
template void run(cuda::Stream&, const RmsNormBackward<float>&);
template void run(cuda::Stream&, const RmsNormBackward<BFloat16>&);

}  // namespace essh
