#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/column_sums.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"
#include "essh/kernels/rms_norm.h"

namespace essh {
namespace {

constexpr int kRmsNormThreads = 128;

// A row is shared by `Warps` warps, 1 or all of the block; each thread keeps `Packs` groups of N consecutive elements
// in registers.
template <int N, int Packs, int Warps>
struct RowShare {
  static constexpr int kRows = kRmsNormThreads / 32 / Warps;  // rows of a block at a time

  __device__ static int row() { return Warps == 1 ? static_cast<int>(threadIdx.x) / 32 : 0; }
  __device__ static Index column(int pack) {
    return (Index{pack} * 32 * Warps + static_cast<Index>(threadIdx.x) % (32 * Warps)) * N;
  }
  // Sum over the threads of the row. Consecutive calls need different buffers.
  __device__ static float sum(float x, float* shared) {
    x = cuda::warp_sum(x);
    if constexpr (Warps == 1) {
      return x;
    } else {
      if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
      __syncthreads();
      return shared[0] + shared[1] + shared[2] + shared[3];
    }
  }
};

template <int N, int Packs, int Warps, class T, class X>
__global__ void __launch_bounds__(kRmsNormThreads) rms_norm_forward(RmsNormForward<T, X> op) {
  using Share = RowShare<N, Packs, Warps>;
  using Run = cuda::Pack<X, N>;
  __shared__ float shared[4];
  cuda::let_next_start();
  const Index row = Index{blockIdx.x} * Share::kRows + Share::row(), width = op.x.cols;
  // Few are read before the previous kernel has ended: they are weights, which no kernel of a pass writes.
  constexpr bool kReadAhead = N * Packs <= 16;
  float gains[kReadAhead ? Packs : 1][N];
  const auto read_gain = [&](int pack, float(&to)[N]) { cuda::load(op.gain.data + Share::column(pack), to); };
  if constexpr (kReadAhead) {
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack)
      if (Share::column(pack) < width) read_gain(pack, gains[pack]);
  }
  cuda::after_previous();
  if (row >= op.x.rows) return;
  Run values[Packs];
  float squares = 0;
#pragma unroll
  for (int pack = 0; pack < Packs; ++pack) {
    const Index c = Share::column(pack);
    if (c >= width) break;
    values[pack] = *reinterpret_cast<const Run*>(op.x.row(row) + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = cuda::widen(values[pack].items[i]);
      squares += x * x;
    }
  }
  squares = Share::sum(squares, shared);
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(width) + static_cast<float>(op.eps));
  if (Share::column(0) == 0 && !op.inverse_rms.empty()) op.inverse_rms[row] = inverse;
#pragma unroll
  for (int pack = 0; pack < Packs; ++pack) {
    const Index c = Share::column(pack);
    if (c >= width) break;
    auto& gain = gains[kReadAhead ? pack : 0];
    if constexpr (!kReadAhead) read_gain(pack, gain);
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = gain[i] * (cuda::widen(values[pack].items[i]) * inverse);
    cuda::store(op.y.row(row) + c, y);
  }
}

// Each block loops over rows; every thread accumulates d_gain for its columns, and the rows of a block are added in
// order at the end.
template <int N, int Packs, int Warps, class T, class X>
__global__ void __launch_bounds__(kRmsNormThreads) rms_norm_backward(RmsNormBackward<T, X> op, float* partial) {
  using Share = RowShare<N, Packs, Warps>;
  using Run = cuda::Pack<X, N>;
  using SlopeRun = cuda::Pack<T, N>;
  extern __shared__ float lines[];
  __shared__ float shared[2][4];
  const Index width = op.x.cols;
  float sums[Packs][N] = {};
  int turn = 0;
  for (Index row = Index{blockIdx.x} * Share::kRows + Share::row(); row < op.x.rows;
       row += Index{gridDim.x} * Share::kRows) {
    const float inverse = op.inverse_rms[row];
    X* d_x = op.d_x.row(row);
    Run values[Packs];
    SlopeRun slopes[Packs];
    float along = 0;
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack) {
      const Index c = Share::column(pack);
      if (c >= width) break;
      values[pack] = *reinterpret_cast<const Run*>(op.x.row(row) + c);
      slopes[pack] = *reinterpret_cast<const SlopeRun*>(op.d_y.row(row) + c);
    }
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack) {
      const Index c = Share::column(pack);
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
    const float shift = Share::sum(along, shared[turn]) * inverse * inverse / static_cast<float>(width);
    turn ^= 1;
#pragma unroll
    for (int pack = 0; pack < Packs; ++pack) {
      const Index c = Share::column(pack);
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
      if (!op.rounded.empty()) cuda::store(op.rounded.row(row) + c, result);
    }
  }
  if (partial == nullptr) return;
#pragma unroll
  for (int pack = 0; pack < Packs; ++pack) {
    const Index c = Share::column(pack);
    if (c >= width) break;
#pragma unroll
    for (int i = 0; i < N; ++i) lines[Share::row() * width + c + i] = sums[pack][i];
  }
  __syncthreads();
  for (Index c = threadIdx.x; c < width; c += kRmsNormThreads) {
    float sum = 0;
    for (int r = 0; r < Share::kRows; ++r) sum += lines[r * width + c];
    partial[Index{blockIdx.x} * width + c] = sum;
  }
}

// Calls body.operator()<Packs, Warps>() so that a row of `runs` groups fits in registers.
template <class Body>
void with_shares(Index runs, const Body& body) {
  if (runs <= 128) return body.template operator()<4, 1>();
  if (runs <= 256) return body.template operator()<2, 4>();
  if (runs <= 512) return body.template operator()<4, 4>();
  if (runs <= 2048) return body.template operator()<16, 4>();
  fail(ErrorKind::Unsupported, "on CUDA a row may have {} runs of 16 bytes at most, this one has {}", 2048, runs);
}

}  // namespace

template <class T, class X>
void run(cuda::Stream& stream, const RmsNormForward<T, X>& op) {
  cuda::with_width<X>(
      [&]<int N>() {
        with_shares((op.x.cols + N - 1) / N, [&]<int Packs, int Warps>() {
          cuda::launch(stream, "rms_norm_forward",
                       {cuda::blocks_for(op.x.rows, RowShare<N, Packs, Warps>::kRows), kRmsNormThreads, 0, true},
                       rms_norm_forward<N, Packs, Warps, T, X>, op);
        });
      },
      op.x, op.y, op.gain);
}

template <class T, class X>
void run(cuda::Stream& stream, const RmsNormBackward<T, X>& op) {
  if (op.x.rows == 0) return;
  cuda::Scratch scratch(stream);
  const Index width = op.x.cols;
  cuda::with_width<X>(
      [&]<int N>() {
        with_shares((width + N - 1) / N, [&]<int Packs, int Warps>() {
          constexpr int kRows = RowShare<N, Packs, Warps>::kRows;
          const unsigned blocks =
              std::min(cuda::blocks_for(op.x.rows, kRows), static_cast<unsigned>(stream.multiprocessors() * 6));
          float* partial = op.d_gain.empty() ? nullptr : scratch.take<float>(Index{blocks} * width);
          const std::size_t bytes = partial ? static_cast<std::size_t>(kRows * width) * sizeof(float) : 0;
          cuda::launch(stream, "rms_norm_backward", {blocks, kRmsNormThreads, bytes},
                       rms_norm_backward<N, Packs, Warps, T, X>, op, partial);
          if (partial) cuda::add_lines(stream, partial, blocks, width, op.d_gain.data);
        });
      },
      op.x, op.d_y, op.d_x, op.gain, op.rounded);
}

template void run(cuda::Stream&, const RmsNormForward<float>&);
template void run(cuda::Stream&, const RmsNormForward<BFloat16>&);
template void run(cuda::Stream&, const RmsNormForward<BFloat16, float>&);
template void run(cuda::Stream&, const RmsNormBackward<float>&);
template void run(cuda::Stream&, const RmsNormBackward<BFloat16>&);
template void run(cuda::Stream&, const RmsNormBackward<BFloat16, float>&);

}  // namespace essh
