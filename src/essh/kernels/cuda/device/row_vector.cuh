#pragma once
#include "essh/base/bfloat16.h"
#include "essh/kernels/cuda/device/mma.cuh"

// One row of up to 128 numbers spread over neighbouring lanes, 16 bytes each.
namespace essh::cuda::device {

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ void store(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void store(BFloat16* to, float x) {
  to->bits = static_cast<std::uint16_t>(pack(x, 0.0f));
}

// A lane's share of a row. Rows whose first element or length is not a multiple of 16 bytes are read one by one.
template <class T, bool kAligned>
struct LanePart {
  static constexpr int kSize = 16 / int{sizeof(T)};
  uint4 bits;

  __device__ __forceinline__ static LanePart zero() { return {uint4{0, 0, 0, 0}}; }
  // Elements [lane * kSize, (lane + 1) * kSize) of a row of `columns`; zero beyond.
  __device__ __forceinline__ static LanePart load(const T* row, int lane, int columns) {
    LanePart part = zero();
    const int first = lane * kSize;
    if (kAligned) {
      if (first < columns) part.bits = *reinterpret_cast<const uint4*>(row + first);
    } else {
      T* element = reinterpret_cast<T*>(&part.bits);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (first + i < columns) element[i] = row[first + i];
      }
    }
    return part;
  }
  __device__ __forceinline__ void store_to(T* row, int lane, int columns) const {
    const int first = lane * kSize;
    if (kAligned) {
      if (first < columns) *reinterpret_cast<uint4*>(row + first) = bits;
    } else {
      const T* element = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        if (first + i < columns) row[first + i] = element[i];
      }
    }
  }
  __device__ __forceinline__ void unpack(float (&x)[kSize]) const {
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        x[i] = __uint_as_float(words[i]);
      } else {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
      }
    }
  }
};

// The sum over kLanes neighbouring lanes, in all of them.
template <int kLanes>
__device__ __forceinline__ float sum_over_lanes(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

}  // namespace essh::cuda::device
