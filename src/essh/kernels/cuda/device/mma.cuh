#pragma once
#include <cstdint>

// Tensor-core products of bf16 numbers with float sums, and asynchronous copies into shared memory, by instructions of
// sm_80 and later. With g = lane / 4 and t = lane % 4 a lane holds
//   of A (16 x 16): words (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), two columns each
//   of B (16 x 8):  words (2t, g), (2t + 8, g), two rows each
//   of C (16 x 8):  numbers (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// so the C of two adjacent products is, rounded, the A of the next one.
namespace essh::cuda::device {

// Two bf16 numbers, the first in the lower half.
using Word = std::uint32_t;

__device__ __forceinline__ Word pack(float low, float high) {
  Word word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// c += a b
__device__ __forceinline__ void mma(float (&c)[4], const Word (&a)[4], Word b0, Word b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// Loads four 8 x 8 blocks; lanes 8i .. 8i + 7 pass the addresses of the rows of block i. A lane receives of each block
// the word (g, 2t), or with `transposed` the pair (2t, g), (2t + 1, g).
__device__ __forceinline__ void load_blocks(Word (&x)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_blocks_transposed(Word (&x)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(row)
               : "memory");
}

// Transposes an 8 x 8 block of which each lane holds the word (g, 2t).
__device__ __forceinline__ Word transpose_block(Word x) {
  Word y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Copies 16 bytes from global to shared memory; if not `valid`, writes zeros and does not read `from`.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// The same for one float.
__device__ __forceinline__ void copy_async_float(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for this thread's copies, but for its kLater last groups.
template <int kLater = 0>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

}  // namespace essh::cuda::device
