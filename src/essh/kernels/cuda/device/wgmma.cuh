#pragma once
#include <cstdint>

// Products of a warp group, 128 threads: 64 rows of A with all columns of B, both bf16 in shared memory, sums in float.
// Needs sm_90a. Both operands lie row by row, 64 numbers (128 bytes) of the inner index each, eight rows in a kilobyte
// whose 16-byte words are permuted as tensor copies with a swizzle of 128 bytes do. Lane 4g + t of warp w holds numbers
// (16w + g, 8i + 2t), (16w + g, 8i + 2t + 1) and those eight rows below as sums[4i .. 4i + 3].
namespace essh::cuda::device {

// Describes an operand that begins at this address, a multiple of 1024, or 32, 64 or 96 bytes behind one.
__device__ __forceinline__ std::uint64_t operand_at(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 1024 / 16, kSwizzle128 = 1;
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kLeft` groups of products are under way.
template <int kLeft>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

#define ESSH_FOUR(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define ESSH_EIGHT(x, i) ESSH_FOUR(x, i), ESSH_FOUR(x, i + 4)
#define ESSH_SIXTEEN(x, i) ESSH_EIGHT(x, i), ESSH_EIGHT(x, i + 8)
#define ESSH_THIRTY_TWO(x, i) ESSH_SIXTEEN(x, i), ESSH_SIXTEEN(x, i + 16)

// sums += A B over 16 numbers of the inner index; B has 16, 32, 64 or 128 columns.
__device__ __forceinline__ void multiply_add(float (&sums)[8], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{ .reg .pred adds; setp.eq.u32 adds, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, adds, 1, 1, 0, 0; }"
      : ESSH_EIGHT(sums, 0)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_add(float (&sums)[16], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{ .reg .pred adds; setp.eq.u32 adds, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, adds, 1, 1, 0, 0; }"
      : ESSH_SIXTEEN(sums, 0)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_add(float (&sums)[32], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{ .reg .pred adds; setp.eq.u32 adds, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
      "%28,%29,%30,%31}, %32, %33, adds, 1, 1, 0, 0; }"
      : ESSH_THIRTY_TWO(sums, 0)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_add(float (&sums)[64], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "{ .reg .pred adds; setp.eq.u32 adds, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,"
      "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,"
      "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, adds, 1, 1, 0, 0; }"
      : ESSH_THIRTY_TWO(sums, 0), ESSH_THIRTY_TWO(sums, 32)
      : "l"(a), "l"(b));
}

#undef ESSH_THIRTY_TWO
#undef ESSH_SIXTEEN
#undef ESSH_EIGHT
#undef ESSH_FOUR

}  // namespace essh::cuda::device
