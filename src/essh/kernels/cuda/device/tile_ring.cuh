#pragma once
#include <cstdint>

#include "essh/kernels/cuda/device/mma.cuh"

// A stream of bytes from global memory through a ring of slots in shared memory: one lane fills the slots in order, and
// warps read them behind it. Needs the bulk copies and barriers of sm_90.
namespace essh::cuda::device {

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(std::uint64_t* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, unsigned phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}
// Whether the phase is over, without waiting.
__device__ __forceinline__ bool barrier_passed(std::uint64_t* barrier, unsigned phase) {
  unsigned passed;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(passed)
      : "r"(shared_address(barrier)), "r"(phase)
      : "memory");
  return passed != 0;
}
// Weights are read once per step: evict-first in the L2 cache.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, std::uint64_t* barrier) {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

struct TileRing {
  unsigned char* slots;
  std::uint64_t* full;
  std::uint64_t* empty;
  int count;
  int slot_bytes;

  // Called by one thread, before a barrier of the block.
  __device__ void init(int readers) const {
    for (int i = 0; i < count; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, static_cast<unsigned>(readers));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
};

// Position of a writer or reader in a ring.
struct RingPlace {
  TileRing ring;
  int slot = 0;
  unsigned phase = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == ring.count) {
      slot = 0;
      phase ^= 1;
    }
  }
  // Waits until the slot has been filled.
  __device__ __forceinline__ void await_filled() const { barrier_wait(ring.full + slot, phase); }
  // For the one thread that fills the ring: whether at most `slots` of them, fewer than all, are filled or on their
  // way. Then all others are free, up to the last one before those.
  __device__ __forceinline__ bool holds_at_most(int slots) const {
    const int last = slot + ring.count - slots - 1;
    const bool wraps = last >= ring.count;
    return barrier_passed(ring.empty + (wraps ? last - ring.count : last), wraps ? phase : phase ^ 1);
  }
  // For the same thread: the next slot, once its readers have released it. Copies of `bytes` in all to it must follow,
  // with full() as their barrier, and then advance().
  __device__ __forceinline__ unsigned char* open(unsigned bytes) const {
    barrier_wait(ring.empty + slot, phase ^ 1);  // the first round does not wait
    // The readers' loads before the bulk copy, which is of another proxy: the barrier alone does not order the two.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier_expect(full(), bytes);
    return ring.slots + slot * ring.slot_bytes;
  }
  __device__ __forceinline__ std::uint64_t* full() const { return ring.full + slot; }
  __device__ __forceinline__ void fill(const void* from, unsigned bytes) {
    copy_bulk(open(bytes), from, bytes, full());
    advance();
  }
  // For each reading warp: waits for the next slot.
  __device__ __forceinline__ const unsigned char* take() const {
    await_filled();
    return ring.slots + slot * ring.slot_bytes;
  }
  // By all lanes of a warp, once it has read the slot; those that `arrive` count as the ring's readers.
  __device__ __forceinline__ void give_back(bool arrives) {
    __syncwarp();
    if (arrives) barrier_arrive(ring.empty + slot);
    advance();
  }
  // The same in a ring whose readers are lanes, 32 per warp. racecheck follows these arrivals; where one lane arrives
  // for its warp, it may miss that the other lanes have read before.
  __device__ __forceinline__ void give_back_each() {
    barrier_arrive(ring.empty + slot);
    advance();
  }
};

}  // namespace essh::cuda::device
