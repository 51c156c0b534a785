#pragma once
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/streamed_step.h"

// Codes of a quantised tile in registers, and their conversion to bf16. Every weight is scale * code, rounded once:
// steps before the last multiplication are exact. Needs sm_90.
namespace essh::cuda::device {

__device__ __forceinline__ Word multiply_pair(Word x, Word y) {
  Word z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
__device__ __forceinline__ Word subtract_pair(Word x, Word y) {
  Word z;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
__device__ __forceinline__ Word multiply_add_pair(Word x, Word y, Word addend) {
  Word z;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(addend));
  return z;
}

inline constexpr Word kSigns = 0x80008000u;
// A bf16 number from 128 to 255 is 0x4300 plus its distance from 128.
inline constexpr Word k128 = 0x43004300u, k136 = 0x43084308u, kMinus128 = 0xc300c300u;

// The scales of a lane's two rows, each in both halves of a word.
struct TileScales {
  Word pair;

  __device__ __forceinline__ void load(const unsigned char* scales, int lane) {
    pair = *reinterpret_cast<const Word*>(scales + lane / 4 * 4);
  }
  __device__ __forceinline__ Word row(int r) const { return __byte_perm(pair, 0, r == 0 ? 0x1010 : 0x3232); }
};

// weights(): A operands of two m16n8k16 products, of columns 8q .. 8q + 3 and 8q + 4 .. 8q + 7.
template <TileFormat kFormat>
struct TileCodes;

template <>
struct TileCodes<TileFormat::Q8> {
  uint4 codes;
  TileScales scales;

  __device__ __forceinline__ void load(const unsigned char* tile, int lane) {
    codes = *reinterpret_cast<const uint4*>(tile + lane * 16);
    scales.load(tile + kTileBytes, lane);
  }
  __device__ __forceinline__ void weights(Word (&a)[2][4]) const {
    const Word words[4] = {codes.x, codes.y, codes.z, codes.w};
    // (128 + magnitude) * scale - 128 * scale, in one rounding.
    const Word scale[2] = {scales.row(0), scales.row(1)};
    const Word offset[2] = {multiply_pair(scale[0], kMinus128), multiply_pair(scale[1], kMinus128)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Word turned = __byte_perm(words[i], 0, 0x2301);
      const auto weight = [&](Word w) {
        return multiply_add_pair((w & 0x007f007fu) | k128, scale[i % 2], offset[i % 2]) ^ (w & kSigns);
      };
      a[i / 2][i % 2] = weight(words[i]);
      a[i / 2][i % 2 + 2] = weight(turned);
    }
  }
};

template <>
struct TileCodes<TileFormat::FP8> {
  uint4 codes;
  TileScales scales;

  __device__ __forceinline__ void load(const unsigned char* tile, int lane) {
    codes = *reinterpret_cast<const uint4*>(tile + lane * 16);
    scales.load(tile + kTileBytes, lane);
  }
  __device__ __forceinline__ void weights(Word (&a)[2][4]) const {
    // With its exponent and mantissa at the bits of a bf16 number's, an E4M3 number is 2^120 times too small.
    constexpr Word kMagnitudes = 0x07f007f0u, k2To120 = 0x7b807b80u;
    const Word words[4] = {codes.x, codes.y, codes.z, codes.w};
    const Word scale[2] = {scales.row(0), scales.row(1)};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Word w = words[i];
      const Word low = ((w << 4) & kMagnitudes) | ((w << 8) & kSigns), high = ((w >> 4) & kMagnitudes) | (w & kSigns);
      a[i / 2][i % 2] = multiply_pair(multiply_pair(low, k2To120), scale[i % 2]);
      a[i / 2][i % 2 + 2] = multiply_pair(multiply_pair(high, k2To120), scale[i % 2]);
    }
  }
};

template <>
struct TileCodes<TileFormat::Q4> {
  uint2 codes;
  TileScales scales;

  __device__ __forceinline__ void load(const unsigned char* tile, int lane) {
    codes = *reinterpret_cast<const uint2*>(tile + lane * 8);
    scales.load(tile + kTileBytes / 2, lane);
  }
  __device__ __forceinline__ void weights(Word (&a)[2][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Word scale = scales.row(r);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Word biased = (((r == 0 ? codes.x : codes.y) >> (4 * i)) & 0x000f000fu) | k128;  // 128 + 8 + code
        a[i / 2][i % 2 * 2 + r] = multiply_pair(subtract_pair(biased, k136), scale);
      }
    }
  }
};

}  // namespace essh::cuda::device
