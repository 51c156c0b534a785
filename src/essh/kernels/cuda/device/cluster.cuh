#pragma once
#include <cstdint>

#include "essh/kernels/cuda/device/mma.cuh"

// Blocks of a cluster: sm_90 and later.
namespace essh::cuda::device {

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same without an order of memory.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Of this place of the block's shared memory, the same in another block.
__device__ __forceinline__ std::uint32_t address_in(const void* shared, int rank) {
  std::uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
  return there;
}
// Stores four floats in another block and counts their bytes at its barrier. The block must have begun, and may not end
// before they have come.
__device__ __forceinline__ void send(std::uint32_t to, float4 x, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}
// Waits until all bytes that a barrier expects have come from other blocks; of its first phase.
__device__ __forceinline__ void await_sent(std::uint64_t* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier))
      : "memory");
}

}  // namespace essh::cuda::device
