#pragma once
#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/blend.cuh"
#include "essh/kernels/cuda/device/scan_tensor.cuh"
#include "essh/kernels/selective_mix.h"

namespace essh::cuda {

// Inputs of a chunk: values and gates as given, or computed from the projections.
template <int P>
__device__ void load_inputs(Half<kTokens, P>& values, const SelectiveScanForward<BFloat16>& op, const ChunkPlace& at) {
  load_values<ScanSizes<BFloat16, 16, P>>(values.at, op.v, at.first, at.count, at.column, at.width);
}
template <int P>
__device__ void load_inputs(Half<kTokens, P>& values, const SelectiveMix<BFloat16>& op, const ChunkPlace& at) {
  constexpr int kLanes = P / 4;
  const BFloat16* start = op.v0.row(at.first) + at.column;
  const int stride = static_cast<int>(op.v0.stride), p = static_cast<int>(threadIdx.x) % kLanes * 4;
  const bool packed = at.width % 4 == 0 && stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(start) % 8 == 0;
  const float blend = op.blend[at.channel];
#pragma unroll
  for (int t = threadIdx.x / kLanes; t < kTokens; t += kTileThreads / kLanes) {
    float x[4] = {0, 0, 0, 0};
    if (t < at.count && p < at.width) {
      const BFloat16* place = start + t * stride + p;
      if (packed) {
        load(place, x);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = p + j < at.width ? widen(place[j]) : 0.0f;
      }
    }
    const float inverse = inverse_rms(lanes_sum<kLanes>(run_squares(x)), at.width, static_cast<float>(op.eps));
    const float scale = blend_scale(blend, inverse);
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] *= scale;
    store(values.at + t * Half<kTokens, P>::kStride + p, x);
  }
}

__device__ inline void load_write(float (&x)[2][2], const SelectiveScanForward<BFloat16>& op, const ChunkPlace& at) {
  load_gate(x, op.write, at);
}
__device__ inline void load_read(float (&x)[2][2], const SelectiveScanForward<BFloat16>& op, const ChunkPlace& at) {
  load_gate(x, op.read, at);
}
__device__ inline void load_clock(float (&x)[2][2], const SelectiveScanForward<BFloat16>& op, const ChunkPlace& at) {
  load_gate(x, op.clock, at);
}
__device__ inline void load_write(float (&x)[2][2], const SelectiveMix<BFloat16>& op, const ChunkPlace& at) {
  load_gate(x, op.write_logits, op.write_bias, at, [](float s) { return 2.0f * sigmoid(s); });
}
__device__ inline void load_read(float (&x)[2][2], const SelectiveMix<BFloat16>& op, const ChunkPlace& at) {
  load_gate(x, op.read_logits, op.read_bias, at, [](float s) { return 2.0f * sigmoid(s); });
}
__device__ inline void load_clock(float (&x)[2][2], const SelectiveMix<BFloat16>& op, const ChunkPlace& at) {
  load_gate(x, op.clock_logits, op.clock_bias, at, [](float s) { return softplus(s); });
}

template <int P>
struct TensorIncrementShared {
  Halves<kTokens, kPairs> factor;
  Half<kTokens, P> values;
  float lines[kTileWarps][kTensorModes];
};

// factor^T values for this warp's columns; each lane has both parts of one mode: out(mode, column, part 0 at column and
// column + 1, part 1 likewise).
template <int P, class Out>
__device__ void state_product(const TensorIncrementShared<P>& s, const Out& out) {
  constexpr int kColumns = P / kTileWarps < 16 ? 16 : P / kTileWarps;  // two products at a time
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int column = warp * kColumns; column < P && column < (warp + 1) * kColumns; column += 16) {
    float sums[2][4] = {};
#pragma unroll
    for (int t = 0; t < kTokens; t += 16) {
      Word high[4], low[4], b[4];
      s.factor.high.left_turned(high, t, 0);
      s.factor.low.left_turned(low, t, 0);
      s.values.down(b, t, column);
      add(sums[0], sums[1], low, b);
      add(sums[0], sums[1], high, b);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      out(lane / 4, column + tile * 8 + lane % 4 * 2, float2{sums[tile][0], sums[tile][1]},
          float2{sums[tile][2], sums[tile][3]});
    }
  }
}

// Stores two values of row (mode, part) of a channel's state.
__device__ inline void store_pair(float* place, int p, int width, float2 x) {
  if (p < width) place[p] = x.x;
  if (p + 1 < width) place[p + 1] = x.y;
}

template <int P, class Op>
__global__ void __launch_bounds__(kTileThreads)
    tensor_increments(Op op, ScanTables tables, Matrix<float> increments, float* through) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<TensorIncrementShared<P>*>(raw);
  after_previous();
  const ChunkPlace at(op);
  const TokenMode mine;
  load_inputs(s.values, op, at);
  float write[2][2], decay[2][2];
  load_write(write, op, at);
  load_clock(decay, op, at);
  const float2 whole = accumulate_decay(decay, tables, at, s.lines);
  const ModePair modes(tables, at);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int t = mine.first + j;
    const float2 left = modes.turns[0][t], right = modes.turns[1][t];
    const float x = write[j][0] * __expf(decay[j][0] - whole.x), y = write[j][1] * __expf(decay[j][1] - whole.y);
    s.factor.set(t, mine.mode, x * left.x, y * right.x);
    s.factor.set(t, 8 + mine.mode, x * left.y, y * right.y);
  }
  if (mine.first == 0) {
    float* place = through + (at.row * gridDim.x + at.channel) * at.modes + mine.mode;
    if (mine.mode < at.modes) place[0] = __expf(-whole.x);
    if (mine.mode + 1 < at.modes) place[1] = __expf(-whole.y);
  }
  __syncthreads();
  float* to = increments.row(at.row) + Index{at.channel} * 2 * at.modes * at.width;
  state_product<P>(s, [&](int m, int p, float2 x, float2 y) {
    if (m >= at.modes) return;
    // Rotated from the first token to the last, and reversed in time.
    const float2 turn = tables.turns_of(at.channel, m)[at.count - 1];
    store_pair(to + 2 * m * at.width, p, at.width, {turn.x * x.x + turn.y * y.x, turn.x * x.y + turn.y * y.y});
    store_pair(to + (2 * m + 1) * at.width, p, at.width, {turn.y * x.x - turn.x * y.x, turn.y * x.y - turn.x * y.y});
  });
}

// Direct modes: their decay over the chunk is too large for factors, so that their terms of g are computed pair by
// pair. They forget within a few tokens, so most blocks have no such terms.
struct DirectModes {
  float read[kTokens][kTensorModes], write[kTokens][kTensorModes], decay[kTokens][kTensorModes];
  int direct[kTensorModes];

  // Whether tokens from `later` on still depend on those up to `earlier`.
  __device__ bool reaches(int mode, int later, int earlier) const {
    constexpr float kForgotten = 40;
    return later <= earlier || decay[later][mode] - decay[earlier][mode] < kForgotten;
  }
  // Weight of a pair without the readout: read(t) write(s) e^{-decay between}.
  __device__ float weight(int mode, int t, int s) const {
    return read[t][mode] * write[s][mode] * __expf(decay[s][mode] - decay[t][mode]);
  }
};

template <int P>
struct TensorOutputShared {
  Halves<kTokens, kPairs> q, k;
  Halves<kPairs, P> state;
  Half<kTokens, P> values;
  DirectModes direct;
  float diagonal[kTokens];
  float lines[kTileWarps][kTensorModes];
};

// Loads the state H of a channel as e^{-centre} J R(theta) H, the operand of q: like k it rotates backwards, so J =
// diag(1, -1). `kept` is e^{-centre} per mode.
template <int P>
__device__ void load_turned_state(Halves<kPairs, P>& to, const float* from, const ScanTables& tables,
                                  const ChunkPlace& at, const float* kept) {
  const bool pairs = at.width % 2 == 0 && (reinterpret_cast<std::uintptr_t>(from) & 7) == 0;
  for (int i = threadIdx.x; i < kTensorModes * (P / 2); i += kTileThreads) {
    const int mode = i / (P / 2), p = i % (P / 2) * 2;
    float2 a = {0, 0}, b = {0, 0}, turn = {0, 0};
    if (mode < at.modes && p < at.width) {
      const float *upper = from + 2 * mode * at.width + p, *lower = upper + at.width;
      if (pairs) {
        a = *reinterpret_cast<const float2*>(upper);
        b = *reinterpret_cast<const float2*>(lower);
      } else {
        a = {upper[0], p + 1 < at.width ? upper[1] : 0.0f};
        b = {lower[0], p + 1 < at.width ? lower[1] : 0.0f};
      }
      turn = tables.turns_of(at.channel, mode)[1];
    }
    const float c = kept[mode] * turn.x, sine = kept[mode] * turn.y;
    to.set(mode, p, c * a.x - sine * b.x, c * a.y - sine * b.y);
    to.set(8 + mode, p, -(sine * a.x + c * b.x), -(sine * a.y + c * b.y));
  }
}

// Direct modes still have q and k, for the states. Their product vanishes only if the decay is large enough: at least
// 30.
__device__ inline float admitted(double range) {
  return fmaxf(static_cast<float>(range), 30.0f);
}

// q and k of a thread's tokens, and the diagonal. Centres are per mode, separate for q and k.
struct Centres {
  float q[2], k[2];
  bool direct[2];
};
template <class Shared>
__device__ Centres make_factors(Shared& s, const ScanTables& tables, const ChunkPlace& at, float range,
                                const float (&read)[2][2], const float (&write)[2][2], const float (&decay)[2][2],
                                float2 whole) {
  const TokenMode mine;
  const ModePair modes(tables, at);
  const float all[2] = {whole.x, whole.y};
  Centres centre;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    centre.direct[i] = mine.mode + i < at.modes && all[i] > range;
    centre.q[i] = centre.direct[i] ? 0.0f : 0.5f * all[i];
    centre.k[i] = centre.direct[i] ? all[i] : 0.5f * all[i];
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int t = mine.first + j;
    float q[2][2], k[2][2], diagonal = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 turn = modes.turns[i][t];
      const float reading = read[j][i] * __expf(centre.q[i] - decay[j][i]),
                  writing = write[j][i] * __expf(decay[j][i] - centre.k[i]);
      q[0][i] = reading * (modes.readout_cos[i] * turn.x - modes.readout_sin[i] * turn.y);
      q[1][i] = reading * (modes.readout_cos[i] * turn.y + modes.readout_sin[i] * turn.x);
      k[0][i] = writing * turn.x;
      k[1][i] = writing * turn.y;
      diagonal += read[j][i] * write[j][i] * modes.own[i];
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      s.q.set(t, part * 8 + mine.mode, q[part][0], q[part][1]);
      s.k.set(t, part * 8 + mine.mode, k[part][0], k[part][1]);
    }
    diagonal += __shfl_xor_sync(0xffffffffu, diagonal, 1);
    diagonal += __shfl_xor_sync(0xffffffffu, diagonal, 2);
    if (mine.mode == 0) s.diagonal[t] = diagonal;
  }
  return centre;
}

// Keeps what pairs of direct modes need from a thread's tokens.
__device__ inline void keep_for_pairs(DirectModes& to, const Centres& centre, const float (&read)[2][2],
                                      const float (&write)[2][2], const float (&decay)[2][2]) {
  const TokenMode mine;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to.read[mine.first + j][mine.mode + i] = read[j][i];
      to.write[mine.first + j][mine.mode + i] = write[j][i];
      to.decay[mine.first + j][mine.mode + i] = decay[j][i];
    }
    if (mine.first == 0) to.direct[mine.mode + i] = centre.direct[i];
  }
}

// Calls body(r, c, number) for every number of a 16 x 16 block at (row, column).
template <class Body>
__device__ __forceinline__ void each(float (&left)[4], float (&right)[4], int row, int column, const Body& body) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = row + g + i / 2 * 8, c = column + 2 * t + i % 2;
    body(r, c, left[i]);
    body(r, c + 8, right[i]);
  }
}

// Calls body(mode, readout_cos, readout_sin, turns) for the direct modes that reach from token `earlier` to `later`.
template <class Body>
__device__ void for_direct_modes(const DirectModes& direct, const ScanTables& tables, const ChunkPlace& at, int later,
                                 int earlier, const Body& body) {
  for (int mode = 0; mode < at.modes; ++mode) {
    if (!direct.direct[mode] || !direct.reaches(mode, later, earlier)) continue;
    body(mode, tables.modes.readout_cos(at.channel, mode), tables.modes.readout_sin(at.channel, mode),
         tables.turns_of(at.channel, mode));
  }
}

// Writes the rows of this warp's strip as bf16, two columns at a time.
template <int P>
__device__ void store_strip(const Matrix<BFloat16>& to, const ChunkPlace& at, const float (&sums)[P / 8][4]) {
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  BFloat16* start = to.row(at.first) + at.column;
  const bool pairs = ((reinterpret_cast<std::uintptr_t>(start) | static_cast<std::uintptr_t>(to.stride * 2)) & 3) == 0;
#pragma unroll
  for (int tile = 0; tile < P / 8; ++tile) {
    const int p = tile * 8 + 2 * t;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + g + half * 8;
      if (row >= at.count || p >= at.width) continue;
      BFloat16* place = start + row * to.stride + p;
      const float x = sums[tile][2 * half], y = sums[tile][2 * half + 1];
      if (pairs && p + 1 < at.width) {
        *reinterpret_cast<Word*>(place) = device::pack(x, y);
      } else {
        place[0] = narrow<BFloat16>(x);
        if (p + 1 < at.width) place[1] = narrow<BFloat16>(y);
      }
    }
  }
}

template <int P, class Op>
__global__ void __launch_bounds__(kTileThreads) tensor_outputs(Op op, ScanTables tables, Matrix<const float> states) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& s = *reinterpret_cast<TensorOutputShared<P>*>(raw);
  after_previous();
  __shared__ float kept[kTensorModes];
  const ChunkPlace at(op);
  const TokenMode mine;
  load_inputs(s.values, op, at);
  float write[2][2], read[2][2], decay[2][2];
  load_write(write, op, at);
  load_read(read, op, at);
  load_clock(decay, op, at);
  const float2 whole = accumulate_decay(decay, tables, at, s.lines);
  const auto centre = make_factors(s, tables, at, admitted(op.factor_range), read, write, decay, whole);
  if (mine.first == 0) {
    kept[mine.mode] = __expf(-centre.q[0]);
    kept[mine.mode + 1] = __expf(-centre.q[1]);
  }
  const bool directs = __syncthreads_or(centre.direct[0] || centre.direct[1]);
  if (directs) keep_for_pairs(s.direct, centre, read, write, decay);
  load_turned_state<P>(s.state, states.row(at.row) + Index{at.channel} * 2 * at.modes * at.width, tables, at, kept);
  __syncthreads();

  const int row = threadIdx.x / 32 * 16;
  float z[P / 8][4] = {};
  const SplitLeft q(s.q, row, 0);
#pragma unroll 1
  for (int column = 0; column <= row; column += 16) {
    float left[4] = {}, right[4] = {};
    Word high[4], low[4];
    s.k.high.across(high, column, 0);
    s.k.low.across(low, column, 0);
    add(left, right, q, high, low);
    if (directs) {
      for_direct_modes(s.direct, tables, at, row, column + 15, [&](int mode, float kc, float ks, const float2* turns) {
        each(left, right, row, column, [&](int t, int other, float& g) {
          if (other < t) g += s.direct.weight(mode, t, other) * (kc * turns[t - other].x - ks * turns[t - other].y);
        });
      });
    }
    if (column == row) {
      each(left, right, row, column, [&](int t, int other, float& g) {
        g = other < t ? g : other == t ? s.diagonal[t] : 0.0f;
      });
    }
    const SplitLeft g(left, right);
#pragma unroll
    for (int p = 0; p < P; p += 16) {
      Word v[4];
      s.values.down(v, column, p);
      add(z[p / 8], z[p / 8 + 1], g, v);
    }
  }
#pragma unroll
  for (int p = 0; p < P; p += 16) {
    Word high[4], low[4];
    s.state.high.down(high, 0, p);
    s.state.low.down(low, 0, p);
    add(z[p / 8], z[p / 8 + 1], q, high, low);
  }
  store_strip<P>(op.z, at, z);
}

}  // namespace essh::cuda
