#pragma once
#include <cuda.h>

#include <cstdint>

#include "essh/kernels/cuda/device/mma.cuh"

// Bulk copies of boxes of a tensor to shared memory by one thread, sm_90 and later. The box and the permutation of its
// words are the tensor map's; the barrier counts the bytes of the whole box, also where it lies outside of the tensor.
namespace essh::cuda::device {

// Some tiles of a matrix, all of the same rows.
__device__ __forceinline__ void copy_tiles(const CUtensorMap& map, void* to, int row, int tile,
                                           std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(0), "r"(row), "r"(tile), "r"(shared_address(barrier))
      : "memory");
}
__device__ __forceinline__ void copy_tiles_once(const CUtensorMap& map, void* to, int row, int tile,
                                                std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, "
      "%3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(0), "r"(row), "r"(tile), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace essh::cuda::device
