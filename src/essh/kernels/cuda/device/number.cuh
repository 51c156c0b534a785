#pragma once
#include <cuda_bf16.h>

#include <cstdint>

#include "essh/base/bfloat16.h"
#include "essh/tensor/matrix.h"

// Number types on the device: arithmetic is in float, BFloat16 is a storage format.
namespace essh::cuda {

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline BFloat16 narrow<BFloat16>(float x) {
  BFloat16 rounded;
  rounded.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return rounded;
}

// N consecutive elements moved at once; the address is a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T items[N];
};
template <int N, class T>
__device__ inline void load(const T* from, float (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(pack.items[i]);
}
template <int N, class T>
__device__ inline void store(T* to, const float (&from)[N]) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.items[i] = narrow<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}
// Sum over the block, in every thread; `shared` holds one float per warp. Consecutive calls may reuse `shared`.
__device__ inline float block_sum(float x, float* shared) {
  x = warp_sum(x);
  const int warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < warps; ++i) sum += shared[i];
  return sum;
}
__device__ inline float block_max(float x, float* shared) {
  x = warp_max(x);
  const int warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[warp] = x;
  __syncthreads();
  float largest = shared[0];
  for (int i = 1; i < warps; ++i) largest = fmaxf(largest, shared[i]);
  return largest;
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ inline float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

}  // namespace essh::cuda
