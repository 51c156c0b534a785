#pragma once
#include "essh/kernels/cuda/device/tile_product.cuh"
#include "essh/kernels/selective_scan.h"

// One chunk of one channel in shared memory: the factors of the interaction matrix, as in the CPU's scan_chunk.h.
//   g(t, s) = q(t) . k(s) below the diagonal, z = g v + b H, H' = through R(n theta) H + w^T v
namespace essh::cuda {

inline constexpr int kTokens = static_cast<int>(kScanChunk);

// Sizes of a kernel: `Inner` >= 2 modes and `Values` >= width, both padded with zeros; values are stored as V in shared
// memory.
template <class T, int Inner, int Values>
struct ScanSizes {
  static constexpr bool kTensor = std::is_same_v<T, BFloat16>;
  using Value = T;
  // Type of the accumulated decay, whose differences become exponents.
  using Sum = std::conditional_t<kTensor, float, double>;
  static constexpr int kInner = Inner, kValues = Values, kModes = Inner / 2;
  // Strides without bank conflicts between the fragments of a warp.
  static constexpr int kFactorStride = Inner + 8, kSquareStride = kTokens + 8, kStateStride = Values + 8,
                       kValueStride = Values + 8;
};

// Tables that do not depend on tokens, computed once per launch: e^{i j theta} for j <= 64, and gamma.
struct ScanTables {
  const float2* turns;  // [channel][mode][65]
  const float* gamma;   // [channel][mode]
  Modes<const float> modes;

  __device__ const float2* turns_of(int channel, int mode) const {
    return turns + (channel * static_cast<int>(modes.decay.cols) + mode) * (kTokens + 1);
  }
};

// One factor for every token, [token][2 mode + part].
template <class S>
struct Factor {
  alignas(16) float at[kTokens * S::kFactorStride];

  __device__ float2& of(int t, int mode) { return *reinterpret_cast<float2*>(at + t * S::kFactorStride + 2 * mode); }
  __device__ Tile<float, S::kFactorStride, 1> rows() const { return {at}; }
  __device__ Tile<float, 1, S::kFactorStride> turned() const { return {at}; }
};

template <class S>
struct Gates {
  typename S::Sum decay[kTokens][S::kModes];  // accumulated from the start of the chunk through this token
  float read[kTokens][S::kModes], write[kTokens][S::kModes];
  float diagonal[kTokens];            // g(t, t)
  typename S::Sum centre[S::kModes];  // half of the chunk's decay
  float through[S::kModes];           // e^{-decay of the chunk}
  int direct[S::kModes];              // decay too large for factors: terms of g are computed pair by pair
  int directs;
};

// e^{-amount}; approximate if the result is rounded to bf16 anyway.
template <class S>
__device__ float decayed(typename S::Sum amount) {
  const auto exponent = static_cast<float>(-amount);
  return S::kTensor ? __expf(exponent) : expf(exponent);
}

// Loads the gates of `count` tokens from row `first` on. Ends with a barrier.
template <class S>
__device__ void load_gates(Gates<S>& f, const Matrix<const float>& write, const Matrix<const float>& read,
                           const Matrix<const float>& clock, const ScanTables& tables, int channel, Index first,
                           int count, float range) {
  const int modes = static_cast<int>(tables.modes.decay.cols);
  for (int i = threadIdx.x; i < kTokens * S::kModes; i += kTileThreads) {
    const int t = i / S::kModes, mode = i % S::kModes;
    const bool inside = t < count && mode < modes;
    const Index column = Index{channel} * modes + mode;
    f.write[t][mode] = inside ? write(first + t, column) : 0.0f;
    f.read[t][mode] = inside && !read.empty() ? read(first + t, column) : 0.0f;
    f.decay[t][mode] = inside ? typename S::Sum(tables.gamma[column]) + clock(first + t, column) : 0.0f;
  }
  if (threadIdx.x == 0) f.directs = 0;
  __syncthreads();
  // Prefix sums over tokens: one warp per mode, two tokens per lane.
  const int lane = threadIdx.x % 32;
  for (int mode = threadIdx.x / 32; mode < S::kModes; mode += kTileWarps) {
    const typename S::Sum a = f.decay[2 * lane][mode], b = f.decay[2 * lane + 1][mode];
    typename S::Sum sum = a + b;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const auto left = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += left;
    }
    auto before = __shfl_up_sync(0xffffffffu, sum, 1);
    if (lane == 0) before = 0;
    f.decay[2 * lane][mode] = before + a;
    f.decay[2 * lane + 1][mode] = before + a + b;
    const auto whole = __shfl_sync(0xffffffffu, sum, 31);
    if (lane == 0) {
      f.centre[mode] = whole / 2;
      f.through[mode] = decayed<S>(whole);
      f.direct[mode] = whole > range;
      if (whole > range) atomicAdd(&f.directs, 1);
    }
  }
  __syncthreads();
}

// The factors, each used by some of the kernels. Padding is zero. No barrier at the end.
template <class S>
__device__ void make_interaction(Gates<S>& f, const ScanTables& tables, int channel, Factor<S>& q, Factor<S>& k) {
  const int modes = static_cast<int>(tables.modes.decay.cols);
  for (int i = threadIdx.x; i < kTokens * S::kModes; i += kTileThreads) {
    const int t = i / S::kModes, mode = i % S::kModes;
    float2 reads = {0, 0}, writes = {0, 0};
    if (mode < modes && !f.direct[mode]) {
      const float2 turn = tables.turns_of(channel, mode)[t];
      const float kc = tables.modes.readout_cos(channel, mode), ks = tables.modes.readout_sin(channel, mode);
      const auto from_centre = f.decay[t][mode] - f.centre[mode];
      const float reading = f.read[t][mode] * decayed<S>(from_centre),
                  writing = f.write[t][mode] * decayed<S>(-from_centre);
      reads = {reading * (kc * turn.x - ks * turn.y), reading * (kc * turn.y + ks * turn.x)};
      writes = {writing * turn.x, writing * turn.y};
    }
    q.of(t, mode) = reads;
    k.of(t, mode) = writes;
  }
  for (int t = threadIdx.x; t < kTokens; t += kTileThreads) {
    float sum = 0;
    for (int mode = 0; mode < modes; ++mode) {
      sum += f.read[t][mode] * f.write[t][mode] * tables.modes.readout_cos(channel, mode) *
             (1.0f - tables.modes.zero_lag(channel, mode));
    }
    f.diagonal[t] = sum;
  }
}

// b: reads the entering state at each token.
template <class S>
__device__ void make_state_readout(const Gates<S>& f, const ScanTables& tables, int channel, Factor<S>& b) {
  const int modes = static_cast<int>(tables.modes.decay.cols);
  for (int i = threadIdx.x; i < kTokens * S::kModes; i += kTileThreads) {
    const int t = i / S::kModes, mode = i % S::kModes;
    float2 reads = {0, 0};
    if (mode < modes) {
      const float2 turn = tables.turns_of(channel, mode)[t + 1];
      const float kc = tables.modes.readout_cos(channel, mode), ks = tables.modes.readout_sin(channel, mode);
      const float reading = f.read[t][mode] * decayed<S>(f.decay[t][mode]);
      reads = {reading * (kc * turn.x - ks * turn.y), -reading * (kc * turn.y + ks * turn.x)};
    }
    b.of(t, mode) = reads;
  }
}

// w: writes each token to the state leaving `count` tokens.
template <class S>
__device__ void make_state_writes(const Gates<S>& f, const ScanTables& tables, int channel, int count, Factor<S>& w) {
  const int modes = static_cast<int>(tables.modes.decay.cols);
  for (int i = threadIdx.x; i < kTokens * S::kModes; i += kTileThreads) {
    const int t = i / S::kModes, mode = i % S::kModes;
    float2 writes = {0, 0};
    if (mode < modes && t < count) {
      const float2 turn = tables.turns_of(channel, mode)[count - 1 - t];
      const float writing = f.write[t][mode] * decayed<S>(2 * f.centre[mode] - f.decay[t][mode]);
      writes = {writing * turn.x, writing * turn.y};
    }
    w.of(t, mode) = writes;
  }
}

// g(t, s) of one mode without read and write: e^{-decay between} (kc cos - ks sin)(lag theta), and the same rotated by
// 90 degrees.
struct PairResponse {
  float along, across;
};
template <class S>
__device__ PairResponse pair_response(const Gates<S>& f, const ScanTables& tables, int channel, int mode, int t,
                                      int s) {
  const float2 turn = tables.turns_of(channel, mode)[t - s];
  const float kc = tables.modes.readout_cos(channel, mode), ks = tables.modes.readout_sin(channel, mode);
  const float kept = decayed<S>(f.decay[t][mode] - f.decay[s][mode]);
  return {kept * (kc * turn.x - ks * turn.y), kept * (-kc * turn.y - ks * turn.x)};
}

// `square` = g, lower triangle; zero above it within the tiles that are read. Begins and ends with a barrier.
template <class S>
__device__ void make_square(const Gates<S>& f, const ScanTables& tables, int channel, const Factor<S>& q,
                            const Factor<S>& k, float* square) {
  multiply<S::kTensor, kTokens, kTokens, true>(
      [&](int t, int s, float x, float y) {
        square[t * S::kSquareStride + s] = s < t ? x : s == t ? f.diagonal[t] : 0.0f;
        square[t * S::kSquareStride + s + 1] = s + 1 < t ? y : s + 1 == t ? f.diagonal[t] : 0.0f;
      },
      term<S::kInner>(q.rows(), k.turned()));
  __syncthreads();
  if (f.directs == 0) return;
  const int modes = static_cast<int>(tables.modes.decay.cols);
  for (int i = threadIdx.x; i < kTokens * kTokens; i += kTileThreads) {
    const int t = i / kTokens, s = i % kTokens;
    if (s >= t) continue;
    float sum = square[t * S::kSquareStride + s];
    for (int mode = 0; mode < modes; ++mode) {
      if (f.direct[mode])
        sum += f.read[t][mode] * f.write[s][mode] * pair_response(f, tables, channel, mode, t, s).along;
    }
    square[t * S::kSquareStride + s] = sum;
  }
  __syncthreads();
}

// Loads rows of one channel's values into shared memory, zero beyond `count` rows and `width` columns.
template <class S, class T>
__device__ void load_values(typename S::Value* to, const Matrix<const T>& from, Index first, int count, Index column,
                            int width) {
  static_assert(S::kValues % 4 == 0);
  const T* start = from.row(first) + column;
  const int stride = static_cast<int>(from.stride);
  const bool packed =
      width % 4 == 0 && stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(start) % (4 * sizeof(T)) == 0;
  for (int i = threadIdx.x; i < kTokens * (S::kValues / 4); i += kTileThreads) {
    const int t = i / (S::kValues / 4), p = i % (S::kValues / 4) * 4;
    Pack<T, 4> pack;
    const T* row = start + t * stride;
    if (t < count && packed && p < width) {
      pack = *reinterpret_cast<const Pack<T, 4>*>(row + p);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) pack.items[j] = t < count && p + j < width ? row[p + j] : narrow<T>(0.0f);
    }
    *reinterpret_cast<Pack<T, 4>*>(to + t * S::kValueStride + p) = pack;
  }
}

// Loads one channel's state, [mode][2][width], into shared memory as [2 mode + part][value].
template <class S>
__device__ void load_state(float* to, const float* from, int modes, int width) {
  for (int i = threadIdx.x; i < S::kInner * S::kValues; i += kTileThreads) {
    const int part = i / S::kValues, p = i % S::kValues;
    to[part * S::kStateStride + p] = part < 2 * modes && p < width ? from[part * width + p] : 0.0f;
  }
}

}  // namespace essh::cuda
