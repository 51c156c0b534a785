#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace essh::cuda {

inline bool is_aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// Bits of bf16, rounded to nearest even.
__device__ inline std::uint16_t rounded(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ inline uint2 rounded(float4 x) {
  const auto pair = [](float low, float high) {
    return static_cast<unsigned>(rounded(low)) | static_cast<unsigned>(rounded(high)) << 16;
  };
  return {pair(x.x, x.y), pair(x.z, x.w)};
}

}  // namespace essh::cuda
