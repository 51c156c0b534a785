#pragma once
#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/streamed_worker.cuh"

// The kernel of the streamed step and its launch. Each format of the weights is compiled in a source of its own.
namespace essh::cuda::device {

template <class T, int kMost, TileFormat kLayers, TileFormat kHead>
__global__ void __launch_bounds__(kMost == 1 ? kThreads + kTakers : kThreads, 1)
    streamed_step(const __grid_constant__ StreamedStep<T> op, int slots) {
#if __CUDA_ARCH__ >= 900
  using Tiles = StepTiles<T, kLayers, kHead>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<T, Tiles::kColumns> shared(memory + slots * Tiles::kSlotBytes, op.layers, op.widest, op.besides,
                                          kMost == 1);
  const TileRing ring{memory, shared.barriers, shared.barriers + 16, slots, Tiles::kSlotBytes};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int worker = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    if (kMost == 1) {
      for (int i = 0; i < kMostChunks; ++i) barrier_init(shared.chunks + i, kTakers);
      barrier_init(shared.chunks + kMostChunks, 1);
    }
    ring.init(op.lanes_give_back ? kReaders : kWarps);
  }
  __syncthreads();
  if (warp == kWarps) {
    if (lane == 0) stream_weights<T, kLayers, kHead>(op, ring, worker);
  } else if (kMost == 1 && warp > kWarps + 1) {
    take_hidden<T>(op, shared, worker, static_cast<int>(threadIdx.x) - kThreads);
  } else if (warp > kWarps) {
    auto* to = reinterpret_cast<uint4*>(op.exchange_again);
    for (Index i = Index{worker} * 32 + lane; i < op.exchange_again_bytes / 16; i += Index{op.workers} * 32)
      to[i] = uint4{kUnsent, kUnsent, kUnsent, kUnsent};
  } else {
    Worker<T, kMost, kLayers, kHead>{.op = op,
                                     .shared = shared,
                                     .reader = {ring},
                                     .worker = worker,
                                     .warp = warp,
                                     .lane = lane,
                                     .thread = static_cast<int>(threadIdx.x)}
        .run();
  }
#endif
}

template <class T, class Tiles>
int shared_bytes(int widest, int besides, int count, int layers) {
  return Shared<T, Tiles::kColumns>::bytes(widest, besides, count, layers);
}
template <class T, class Tiles>
int slots_of(int widest, int besides, int count, int layers) {
  constexpr int kMemory = 227 * 1024, kMostSlots = 16;
  static_assert(2 * kMostChunks * kTakers * 16 >= kMemory);  // streamed_limits() has room for two of the widest inputs
  return std::min(kMostSlots, (kMemory - shared_bytes<T, Tiles>(widest, besides, count, layers)) / Tiles::kSlotBytes);
}

template <class T, TileFormat kLayers, TileFormat kHead>
void launch_streamed(Stream& stream, const StreamedStep<T>& op) {
  using Tiles = StepTiles<T, kLayers, kHead>;
  const int slots = slots_of<T, Tiles>(op.widest, op.besides, op.count, op.layers);
  const Shape shape{.grid = static_cast<unsigned>(op.workers),
                    .block = static_cast<unsigned>(op.count == 1 ? kThreads + kTakers : kThreads),
                    .shared = static_cast<std::size_t>(
                        slots * Tiles::kSlotBytes + shared_bytes<T, Tiles>(op.widest, op.besides, op.count, op.layers)),
                    .cooperative = true};
  if (op.count == 1)
    launch(stream, "streamed step", shape, streamed_step<T, 1, kLayers, kHead>, op, slots);
  else
    launch(stream, "streamed step", shape, streamed_step<T, kStreamedSequences, kLayers, kHead>, op, slots);
}

extern template void launch_streamed<BFloat16, TileFormat::Q8, TileFormat::Q8>(Stream&, const StreamedStep<BFloat16>&);
extern template void launch_streamed<BFloat16, TileFormat::FP8, TileFormat::FP8>(Stream&,
                                                                                 const StreamedStep<BFloat16>&);
extern template void launch_streamed<BFloat16, TileFormat::Q4, TileFormat::Q8>(Stream&, const StreamedStep<BFloat16>&);

}  // namespace essh::cuda::device
