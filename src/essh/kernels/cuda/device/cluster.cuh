#pragma once
#include <cstdint>

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
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Four floats at this address of shared memory in another block of the cluster.
__device__ __forceinline__ float4 load_from(std::uint32_t address, int rank) {
  float4 x;
  asm volatile(
      "{ .reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(address), "r"(rank)
      : "memory");
  return x;
}

}  // namespace essh::cuda::device
