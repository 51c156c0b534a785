#pragma once
#include "essh/kernels/cuda/device/number.cuh"

// One row of up to 128 numbers spread over consecutive lanes, 16 bytes each.
namespace essh::cuda::device {

__device__ __forceinline__ std::uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ std::uint32_t bits_of(BFloat16 x) {
  return x.bits;
}

// A lane's part of a row, in 4-byte words like the registers. Rows whose address or length is not a multiple of 16
// bytes are read and written element by element.
template <class T, bool kAligned>
struct LanePart {
  static constexpr int kSize = 16 / int{sizeof(T)};
  uint4 words;

  __device__ __forceinline__ static LanePart zero() { return {uint4{0, 0, 0, 0}}; }
  __device__ __forceinline__ static constexpr float scale() { return 1.0f; }
  // Elements [lane * kSize, (lane + 1) * kSize) of a row of `columns`; zero beyond.
  __device__ __forceinline__ static LanePart load(const T* row, int lane, int columns) {
    LanePart part = zero();
    const int first = lane * kSize;
    if (kAligned) {
      if (first < columns) part.words = *reinterpret_cast<const uint4*>(row + first);
    } else {
      std::uint32_t word[4] = {};
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (first + i < columns) word[i * 4 / kSize] |= bits_of(row[first + i]) << (i * int{sizeof(T)} % 4 * 8);
      }
      part.words = uint4{word[0], word[1], word[2], word[3]};
    }
    return part;
  }
  __device__ __forceinline__ void store_to(T* row, int lane, int columns) const {
    const int first = lane * kSize;
    if (kAligned) {
      if (first < columns) *reinterpret_cast<uint4*>(row + first) = words;
    } else {
      float x[kSize];
      unpack(x);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (first + i < columns) row[first + i] = narrow<T>(x[i]);
      }
    }
  }
  __device__ __forceinline__ void unpack(float (&x)[kSize]) const {
    const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        x[i] = __uint_as_float(word[i]);
      } else {
        x[2 * i] = __uint_as_float(word[i] << 16);
        x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
      }
    }
  }
};

// Sum over kLanes consecutive lanes, in all of them.
template <int kLanes>
__device__ __forceinline__ float sum_over_lanes(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace essh::cuda::device
