#pragma once
#include "essh/kernels/cuda/device/number.cuh"

// Products of small matrices in shared memory by the four warps of a block. Floats go through the tensor cores as the
// sum of two bf16 numbers, high and low part, which keeps 16 bits of each factor; bf16 values are exact. Without tensor
// cores the same products are plain float32 sums.
namespace essh::cuda {

inline constexpr int kTileThreads = 128, kTileWarps = 4;

// Element (r, c) lies at r * RowStride + c * ColStride.
template <class T, int RowStride, int ColStride>
struct Tile {
  const T* at;
  __device__ float operator()(int r, int c) const { return widen(at[r * RowStride + c * ColStride]); }
};

// Nonzero region of the left operand: for row r all k, k <= r, or k >= r.
enum class Reach { All, Before, After };

// One product a * b of a sum of products; its inner size is a multiple of 16.
template <class A, class B, int Inner, Reach Range = Reach::All>
struct Term {
  A a;
  B b;
};
template <int Inner, Reach Range = Reach::All, class A, class B>
__device__ Term<A, B, Inner, Range> term(A a, B b) {
  return {a, b};
}

// Two adjacent floats as bf16, the first in the lower half of a word; `low` holds the rounding errors.
struct Split {
  unsigned high, low;
};
__device__ inline Split split(float x, float y) {
  const __nv_bfloat162 high = __floats2bfloat162_rn(x, y);
  const float2 back = __bfloat1622float2(high);
  const __nv_bfloat162 low = __floats2bfloat162_rn(x - back.x, y - back.y);
  return {*reinterpret_cast<const unsigned*>(&high), *reinterpret_cast<const unsigned*>(&low)};
}

template <class T>
inline constexpr bool kExact = std::is_same_v<T, BFloat16>;

// Elements (r, c) and (r, c + 1) of a left operand.
template <class T, int RowStride, int ColStride>
__device__ Split pair_in_row(const Tile<T, RowStride, ColStride>& m, int r, int c) {
  if constexpr (kExact<T>) {
    static_assert(ColStride == 1);
    return {*reinterpret_cast<const unsigned*>(m.at + r * RowStride + c), 0};
  } else if constexpr (ColStride == 1) {
    const float2 pair = *reinterpret_cast<const float2*>(m.at + r * RowStride + c);
    return split(pair.x, pair.y);
  } else {
    return split(m(r, c), m(r, c + 1));
  }
}

// Fragments of the mma instruction, lane = 4 g + t.
template <class T, int R, int C>
__device__ void load_left(const Tile<T, R, C>& m, int row, int k, unsigned (&high)[4], unsigned (&low)[4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Split s = pair_in_row(m, row + g + i % 2 * 8, k + 2 * t + i / 2 * 8);
    high[i] = s.high;
    low[i] = s.low;
  }
}
template <class T, int R, int C>
__device__ void load_right(const Tile<T, R, C>& m, int k, int column, unsigned (&high)[2], unsigned (&low)[2]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if constexpr (R == 1) {
    const Tile<T, C, 1> turned{m.at};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Split s = pair_in_row(turned, column + g, k + 2 * t + i * 8);
      high[i] = s.high;
      low[i] = s.low;
    }
  } else if constexpr (kExact<T>) {
    static_assert(C == 1);
    const auto address = static_cast<unsigned>(__cvta_generic_to_shared(m.at + (k + lane % 16) * R + column));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(high[0]), "=r"(high[1])
                 : "r"(address));
    low[0] = low[1] = 0;
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = k + 2 * t + i * 8;
      const Split s = split(m(at, column + g), m(at + 1, column + g));
      high[i] = s.high;
      low[i] = s.low;
    }
  }
}

__device__ inline void mma(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Adds a term's contribution to `Count` adjacent 16 x 8 tiles from (row, column) on.
template <int Count, bool Lower, class TA, int RA, int CA, class TB, int RB, int CB, int Inner, Reach Range>
__device__ void add_term(float (&sums)[Count][4], int row, int column,
                         const Term<Tile<TA, RA, CA>, Tile<TB, RB, CB>, Inner, Range>& term) {
  const int begin = Range == Reach::After ? row : 0, end = Range == Reach::Before ? row + 16 : Inner;
#pragma unroll
  for (int k = 0; k < Inner; k += 16) {
    if (k < begin || k >= end) continue;
    unsigned a_high[4], a_low[4];
    load_left(term.a, row, k, a_high, a_low);
#pragma unroll
    for (int tile = 0; tile < Count; ++tile) {
      if (Lower && column + tile * 8 > row + 15) continue;
      unsigned b_high[2], b_low[2];
      load_right(term.b, k, column + tile * 8, b_high, b_low);
      // Small terms first.
      if constexpr (!kExact<TA>) mma(sums[tile], a_low, b_high);
      if constexpr (!kExact<TB>) mma(sums[tile], a_high, b_low);
      mma(sums[tile], a_high, b_high);
    }
  }
}

// Calls out(r, c, sums of the terms at (r, c) and (r, c + 1)) for all pairs of a Rows x Columns result; with Lower only
// for tiles that reach c <= r. Rows is 64, or at most 32. The caller synchronises the block before and after.
template <bool Tensor, int Rows, int Columns, bool Lower = false, class Out, class... Terms>
__device__ void multiply(const Out& out, const Terms&... terms) {
  if constexpr (Tensor) {
    constexpr int kTiles = Columns / 8;
    constexpr int kAcross = Rows == 64 ? 1 : kTileWarps / (Rows / 16);  // warps that share a row of tiles
    constexpr int kCount = (kTiles + kAcross - 1) / kAcross;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = warp / kAcross * 16, first = warp % kAcross * kCount;
    if (first >= kTiles) return;
    float sums[kCount][4] = {};
    (add_term<kCount, Lower>(sums, row, first * 8, terms), ...);
#pragma unroll
    for (int tile = 0; tile < kCount; ++tile) {
      const int c = (first + tile) * 8 + 2 * t;
      if (Lower && (first + tile) * 8 > row + 15) continue;
      out(row + g, c, sums[tile][0], sums[tile][1]);
      out(row + g + 8, c, sums[tile][2], sums[tile][3]);
    }
  } else {
    for (int i = threadIdx.x; i < Rows * Columns / 2; i += kTileThreads) {
      const int r = i / (Columns / 2), c = i % (Columns / 2) * 2;
      if (Lower && c > r) continue;
      float x = 0, y = 0;
      const auto add = [&]<class A, class B, int Inner, Reach Range>(const Term<A, B, Inner, Range>& term) {
        const int begin = Range == Reach::After ? r : 0, end = Range == Reach::Before ? r + 1 : Inner;
        for (int k = begin; k < end; ++k) {
          const float left = term.a(r, k);
          x += left * term.b(k, c);
          y += left * term.b(k, c + 1);
        }
      };
      (add(terms), ...);
      out(r, c, x, y);
    }
  }
}

}  // namespace essh::cuda
