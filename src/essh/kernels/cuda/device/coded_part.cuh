#pragma once
#include <cuda_fp8.h>

#include "essh/kernels/coded_rows.h"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Rows of coded_rows.h spread over lanes like LanePart.
namespace essh::cuda::device {

// A lane's part of one head of a row: kSize codes and the scale of the head, which the caller multiplies in.
template <int kSize>
struct CodedPart {
  std::uint32_t codes[kSize / 4];
  float factor;

  __device__ __forceinline__ static CodedPart zero() { return {}; }
  // head_dim is a multiple of kSize.
  __device__ __forceinline__ static CodedPart load(const std::byte* head, const std::byte* scale, int lane,
                                                   int head_dim) {
    CodedPart part = zero();
    if (lane * kSize < head_dim) {
      const auto* from = reinterpret_cast<const std::uint32_t*>(head + lane * kSize);
      if constexpr (kSize == 8) {
        const auto pair = *reinterpret_cast<const uint2*>(from);
        part.codes[0] = pair.x;
        part.codes[1] = pair.y;
      } else {
        part.codes[0] = *from;
      }
    }
    part.factor = widen(*reinterpret_cast<const BFloat16*>(scale));
    return part;
  }
  __device__ __forceinline__ float scale() const { return factor; }
  __device__ __forceinline__ void unpack(float (&x)[kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(codes[i / 2] >> (i % 2 * 16));
      const float2 wide = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      x[2 * i] = wide.x;
      x[2 * i + 1] = wide.y;
    }
  }
};

// Stores a head whose numbers are spread over a group of kLanes lanes, all of which take part.
template <int kLanes, int kSize>
__device__ __forceinline__ void store_coded(const float (&x)[kSize], std::byte* head, std::byte* scale, int lane,
                                            int head_dim) {
  constexpr unsigned kAll = 0xffffffffu;
  const unsigned group = kLanes == 32 ? kAll : (kAll >> (32 - kLanes)) << (threadIdx.x % 32 / kLanes * kLanes);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) largest = fmaxf(largest, fabsf(x[i]));
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(group, largest, step));
  BFloat16 factor;
  factor.bits = e4m3_scale_bits(largest);
  if (lane * kSize < head_dim) {
    std::uint32_t codes[kSize / 4] = {};
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      codes[i / 4] |= std::uint32_t{to_e4m3(factor.bits == 0 && x[i] == 0 ? 0.0f : x[i] / widen(factor))}
                      << (i % 4 * 8);
#pragma unroll
    for (int i = 0; i < kSize / 4; ++i) reinterpret_cast<std::uint32_t*>(head + lane * kSize)[i] = codes[i];
  }
  if (lane == 0) *reinterpret_cast<BFloat16*>(scale) = factor;
}

// The zeros behind the scales of a row, by one thread.
__device__ __forceinline__ void pad_coded(std::byte* row, Index columns, int head_dim) {
  const Index bytes = coded_row_bytes(columns, head_dim);
  for (Index i = columns + columns / head_dim * 2; i < bytes; ++i) row[i] = std::byte{0};
}

}  // namespace essh::cuda::device
