#pragma once
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/scan_chunk.cuh"

// The chunk of scan_chunk.cuh for at most 8 modes, on tensor cores. A mode's two parts are 8 columns apart, [part * 8 +
// mode], so that one lane holds both. Factors are in shared memory as two bf16 matrices, high and low part, laid out
// for ldmatrix. The interaction matrix stays in registers.
namespace essh::cuda {

using device::Word;

inline constexpr int kTensorModes = 8, kPairs = 16;

// A bf16 matrix in shared memory with a row stride of Columns + 8: any eight consecutive rows are in different banks.
template <int Rows, int Columns>
struct Half {
  static constexpr int kStride = Columns + 8;
  alignas(16) BFloat16 at[Rows * kStride];

  __device__ Word& word(int r, int c) { return *reinterpret_cast<Word*>(at + r * kStride + c); }
  // 16 rows x 16 columns from (r, c): as left operand (`left`), as transposed left operand (`left_turned`), or as right
  // operands of two products, summed over rows (`down`) or over columns (`across`).
  __device__ void left(Word (&x)[4], int r, int c) const {
    const int lane = threadIdx.x % 32;
    device::load_blocks(x, device::shared_address(at + (r + lane % 16) * kStride + c + lane / 16 * 8));
  }
  __device__ void left_turned(Word (&x)[4], int r, int c) const {
    const int lane = threadIdx.x % 32;
    device::load_blocks_transposed(
        x, device::shared_address(at + (r + lane % 8 + lane / 16 * 8) * kStride + c + lane / 8 % 2 * 8));
  }
  __device__ void down(Word (&x)[4], int r, int c) const {
    const int lane = threadIdx.x % 32;
    device::load_blocks_transposed(x, device::shared_address(at + (r + lane % 16) * kStride + c + lane / 16 * 8));
  }
  __device__ void across(Word (&x)[4], int r, int c) const {
    const int lane = threadIdx.x % 32;
    device::load_blocks(x,
                        device::shared_address(at + (r + lane % 8 + lane / 16 * 8) * kStride + c + lane / 8 % 2 * 8));
  }
};

// Floats split into a high and a low bf16 part.
template <int Rows, int Columns>
struct Halves {
  Half<Rows, Columns> high, low;

  // Elements (r, c) and (r, c + 1), c even.
  __device__ void set(int r, int c, float x, float y) {
    const Word word = device::pack(x, y);
    high.word(r, c) = word;
    low.word(r, c) = device::pack(x - __uint_as_float(word << 16), y - __uint_as_float(word & 0xffff0000u));
  }
  __device__ float2 pair(int r, int c) {
    const Word h = high.word(r, c), l = low.word(r, c);
    return {__uint_as_float(h << 16) + __uint_as_float(l << 16),
            __uint_as_float(h & 0xffff0000u) + __uint_as_float(l & 0xffff0000u)};
  }
};

// Two adjacent 16 x 8 products as the left operand of the next product.
struct SplitLeft {
  Word high[4], low[4];

  __device__ SplitLeft(const float (&left)[4], const float (&right)[4]) {
    const float x[4][2] = {{left[0], left[1]}, {left[2], left[3]}, {right[0], right[1]}, {right[2], right[3]}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      high[i] = device::pack(x[i][0], x[i][1]);
      low[i] = device::pack(x[i][0] - __uint_as_float(high[i] << 16), x[i][1] - __uint_as_float(high[i] & 0xffff0000u));
    }
  }
  template <int Rows, int Columns>
  __device__ SplitLeft(const Halves<Rows, Columns>& m, int r, int c) {
    m.high.left(high, r, c);
    m.low.left(low, r, c);
  }
};

// sums (two adjacent products) += a b; b as loaded by `down` or `across`.
__device__ __forceinline__ void add(float (&left)[4], float (&right)[4], const Word (&a)[4], const Word (&b)[4]) {
  device::mma(left, a, b[0], b[1]);
  device::mma(right, a, b[2], b[3]);
}
__device__ __forceinline__ void add(float (&left)[4], float (&right)[4], const SplitLeft& a, const Word (&b)[4]) {
  add(left, right, a.low, b);
  add(left, right, a.high, b);
}
__device__ __forceinline__ void add(float (&left)[4], float (&right)[4], const SplitLeft& a, const Word (&high)[4],
                                    const Word (&low)[4]) {
  add(left, right, a.low, high);
  add(left, right, a.high, low);
  add(left, right, a.high, high);
}

// A thread owns two adjacent modes of two adjacent tokens; x[token][mode].
struct TokenMode {
  int mode, first;
  __device__ TokenMode() : mode(threadIdx.x % 4 * 2), first(threadIdx.x / 4 * 2) {}
};

// Inclusive prefix sums over the chunk's tokens, in place; returns the totals. `lines` is [warp][mode].
__device__ inline float2 accumulate(float (&x)[2][2], float (*lines)[kTensorModes]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mode = lane % 4 * 2;
  float whole[2] = {0, 0};
  float before[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[1][i] += x[0][i];
    float sum = x[1][i];
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      const float left = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += left;
    }
    before[i] = __shfl_up_sync(0xffffffffu, sum, 4);
    if (lane < 4) before[i] = 0;
    if (lane >= 28) lines[warp][mode + i] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int w = 0; w < kTileWarps; ++w) {
      if (w == warp) before[i] += whole[i];
      whole[i] += lines[w][mode + i];
    }
    x[0][i] += before[i];
    x[1][i] += before[i];
  }
  return {whole[0], whole[1]};
}

// Suffix sums: x becomes the sum over its own and all later tokens of the mode.
__device__ inline void accumulate_back(float (&x)[2][2], float (*lines)[kTensorModes]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mode = lane % 4 * 2;
  float after[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    x[0][i] += x[1][i];
    float sum = x[0][i];
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      const float right = __shfl_down_sync(0xffffffffu, sum, offset);
      if (lane + offset < 32) sum += right;
    }
    after[i] = __shfl_down_sync(0xffffffffu, sum, 4);
    if (lane >= 28) after[i] = 0;
    if (lane < 4) lines[warp][mode + i] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (int w = kTileWarps - 1; w > warp; --w) after[i] += lines[w][mode + i];
    x[0][i] += after[i];
    x[1][i] += after[i];
  }
}

// The work of one block.
struct ChunkPlace {
  int channel, chunk, sequence, count;
  int modes, width;
  Index first;   // row of the first token
  Index row;     // row of per-chunk matrices
  Index column;  // first column of the channel's values

  template <class Op>
  __device__ explicit ChunkPlace(const Op& op)
      : channel(blockIdx.x),
        chunk(blockIdx.y),
        sequence(blockIdx.z),
        modes(static_cast<int>(op.modes.decay.cols)),
        width(static_cast<int>(op.width)),
        first(sequence * op.length + Index{chunk} * kTokens),
        row(Index{sequence} * gridDim.y + chunk),
        column(Index{channel} * op.width) {
    const Index left = op.length - Index{chunk} * kTokens;
    count = static_cast<int>(left < kTokens ? left : kTokens);
  }
};

// Loads a gate's values of a thread's tokens and modes; zero outside.
__device__ inline void load_gate(float (&x)[2][2], const Matrix<const float>& gate, const ChunkPlace& at) {
  const TokenMode mine;
  const float* start = gate.row(at.first) + Index{at.channel} * at.modes + mine.mode;
  const int stride = static_cast<int>(gate.stride);
  const bool pairs = mine.mode + 1 < at.modes && ((reinterpret_cast<std::uintptr_t>(start) | (stride * 4)) & 7) == 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int t = mine.first + j;
    const float* place = start + t * stride;
    float2 both = {0, 0};
    if (t < at.count) {
      if (pairs) {
        both = *reinterpret_cast<const float2*>(place);
      } else {
        if (mine.mode < at.modes) both.x = place[0];
        if (mine.mode + 1 < at.modes) both.y = place[1];
      }
    }
    x[j][0] = both.x;
    x[j][1] = both.y;
  }
}
// The same from logits and biases.
template <class Gate>
__device__ void load_gate(float (&x)[2][2], const Matrix<BFloat16>& logits, const Vector<const float>& bias,
                          const ChunkPlace& at, const Gate& gate) {
  const TokenMode mine;
  const Index column = Index{at.channel} * at.modes + mine.mode;
  const BFloat16* start = logits.row(at.first) + column;
  const int stride = static_cast<int>(logits.stride);
  const bool pairs = ((reinterpret_cast<std::uintptr_t>(start) | (stride * 2)) & 3) == 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) x[0][i] = x[1][i] = 0.0f;
  if (mine.mode >= at.modes) return;
  const bool both = mine.mode + 1 < at.modes;
  const float shift[2] = {bias[column], both ? bias[column + 1] : 0.0f};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int t = mine.first + j;
    if (t >= at.count) break;
    const BFloat16* place = start + t * stride;
    if (pairs && both) {
      const Word word = *reinterpret_cast<const Word*>(place);
      x[j][0] = gate(__uint_as_float(word << 16) + shift[0]);
      x[j][1] = gate(__uint_as_float(word & 0xffff0000u) + shift[1]);
    } else {
      x[j][0] = gate(widen(place[0]) + shift[0]);
      if (both) x[j][1] = gate(widen(place[1]) + shift[1]);
    }
  }
}
// In: the clocks of a thread's tokens. Out: the accumulated decay. Returns the decay of the chunk.
__device__ inline float2 accumulate_decay(float (&x)[2][2], const ScanTables& tables, const ChunkPlace& at,
                                          float (*lines)[kTensorModes]) {
  const TokenMode mine;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float gamma = mine.mode + i < at.modes ? tables.gamma[at.channel * at.modes + mine.mode + i] : 0.0f;
#pragma unroll
    for (int j = 0; j < 2; ++j) x[j][i] += mine.first + j < at.count ? gamma : 0.0f;
  }
  return accumulate(x, lines);
}
__device__ inline float2 load_decay(float (&x)[2][2], const Matrix<const float>& clock, const ScanTables& tables,
                                    const ChunkPlace& at, float (*lines)[kTensorModes]) {
  load_gate(x, clock, at);
  return accumulate_decay(x, tables, at, lines);
}

// The tables of a thread's two modes.
struct ModePair {
  const float2* turns[2];
  float readout_cos[2], readout_sin[2], own[2];  // own = readout_cos (1 - zero_lag)

  __device__ ModePair(const ScanTables& tables, const ChunkPlace& at) {
    const TokenMode mine;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool inside = mine.mode + i < at.modes;
      const int mode = inside ? mine.mode + i : 0;
      turns[i] = tables.turns_of(at.channel, mode);
      readout_cos[i] = inside ? tables.modes.readout_cos(at.channel, mode) : 0.0f;
      readout_sin[i] = inside ? tables.modes.readout_sin(at.channel, mode) : 0.0f;
      own[i] = readout_cos[i] * (1.0f - (inside ? tables.modes.zero_lag(at.channel, mode) : 0.0f));
    }
  }
};

}  // namespace essh::cuda
