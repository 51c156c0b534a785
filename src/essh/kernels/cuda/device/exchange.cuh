#pragma once
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/number.cuh"

// Values passed between the blocks of a running kernel. Each element of the exchange holds kUnsent until its only
// writer stores it, so any other value is valid data: no flag, no fence.
namespace essh::cuda::device {

// Never the result of arithmetic: the GPU's NaN is 0x7fffffff, in bf16 0x7fff. Elements of two bytes are sent in pairs.
inline constexpr unsigned kUnsent = 0xffffffffu;

__device__ __forceinline__ void send(float* to, float x) {
  unsigned bits = __float_as_uint(x);
  if (bits == kUnsent) bits = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
}
// Two adjacent elements, the first at an even index.
__device__ __forceinline__ void send_pair(BFloat16* to, float x, float y) {
  unsigned bits = pack(x, y);
  if (bits == kUnsent) bits = 0x7fff7fffu;
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
}
__device__ __forceinline__ void send_pair(float* to, float x, float y) {
  unsigned first = __float_as_uint(x), second = __float_as_uint(y);
  if (first == kUnsent) first = 0x7fffffffu;
  if (second == kUnsent) second = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1,%2};" ::"l"(to), "r"(first), "r"(second) : "memory");
}
// Prefetches a line into the L2 cache.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

template <int kWords>
struct alignas(4 * kWords) Words {
  unsigned word[kWords];
};
__device__ __forceinline__ Words<1> look1(const void* from) {
  Words<1> x;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(x.word[0]) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ Words<2> look2(const void* from) {
  Words<2> x;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0,%1}, [%2];" : "=r"(x.word[0]), "=r"(x.word[1]) : "l"(from) : "memory");
  return x;
}
__device__ __forceinline__ Words<4> look4(const void* from) {
  Words<4> x;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "l"(from)
               : "memory");
  return x;
}

template <int kWords>
__device__ __forceinline__ Words<kWords> look(const void* from) {
  if constexpr (kWords == 1) return look1(from);
  if constexpr (kWords == 2) return look2(from);
  if constexpr (kWords == 4) return look4(from);
}
// Four elements of T, widened.
template <class T>
__device__ __forceinline__ float4 four_of(const Words<int{sizeof(T)}>& x) {
  if constexpr (sizeof(T) == 4)
    return {__uint_as_float(x.word[0]), __uint_as_float(x.word[1]), __uint_as_float(x.word[2]),
            __uint_as_float(x.word[3])};
  else
    return {__uint_as_float(x.word[0] << 16), __uint_as_float(x.word[0] & 0xffff0000u),
            __uint_as_float(x.word[1] << 16), __uint_as_float(x.word[1] & 0xffff0000u)};
}

// Whether all elements in these words were sent. Without branches, so that all words are asked for at once.
template <int kWords>
__device__ __forceinline__ bool sent(const Words<kWords>& x) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < kWords; ++i) all &= x.word[i] != kUnsent;
  return all;
}
template <int kWords, int kCount>
__device__ __forceinline__ bool sent(const Words<kWords> (&x)[kCount]) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) all &= sent(x[i]);
  return all;
}

// Calls look() until it returns true. A value that never comes is our bug: traps instead of hanging.
template <class Look>
__device__ __forceinline__ void await(const Look& look) {
  for (unsigned tries = 0; !look(); ++tries) {
    if (tries > (1u << 25)) __trap();
  }
}

}  // namespace essh::cuda::device
