#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/streamed_worker.cuh"

namespace essh {
namespace {

using namespace cuda::device;

template <class T, int kMost, TileFormat kLayers, TileFormat kHead>
__global__ void __launch_bounds__(kThreads, 1) streamed_step(const __grid_constant__ StreamedStep<T> op, int slots) {
#if __CUDA_ARCH__ >= 900
  using Tiles = StepTiles<T, kLayers, kHead>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<T, Tiles::kColumns> shared(memory + slots * Tiles::kSlotBytes, op.layers);
  const TileRing ring{memory, shared.barriers, shared.barriers + 16, slots, Tiles::kSlotBytes};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int worker = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) ring.init(kWarps);
  __syncthreads();
  if (warp == kWarps) {
    if (lane == 0) stream_weights<T, kLayers, kHead>(op, ring, worker);
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

// Calls use.template operator()<layer format, head format>(), where streamed_formats() allows them.
template <class T, class Use>
auto with_formats(TileFormat layers, const Use& use) {
  if constexpr (sizeof(T) == 2) {
    if (layers == TileFormat::Q8) return use.template operator()<TileFormat::Q8, TileFormat::Q8>();
    if (layers == TileFormat::FP8) return use.template operator()<TileFormat::FP8, TileFormat::FP8>();
    if (layers == TileFormat::Q4) return use.template operator()<TileFormat::Q4, TileFormat::Q8>();
  }
  return use.template operator()<TileFormat::Plain, TileFormat::Plain>();
}

template <class T, class Tiles>
int shared_bytes(int widest, int count, int layers) {
  return Shared<T, Tiles::kColumns>::bytes(widest, count, layers);
}
template <class T, class Tiles>
int slots_of(int widest, int count, int layers) {
  constexpr int kMemory = 227 * 1024, kMostSlots = 16;
  return std::min(kMostSlots, (kMemory - shared_bytes<T, Tiles>(widest, count, layers)) / Tiles::kSlotBytes);
}

template <class T>
void launch_step(cuda::Stream& stream, const StreamedStep<T>& op) {
  ESSH_ASSERT(op.count >= 1 && op.count <= kStreamedSequences);
  ESSH_ASSERT(streamed_formats<T>(op.layer_format, op.head_format));
  with_formats<T>(op.layer_format, [&]<TileFormat kLayers, TileFormat kHead>() {
    using Tiles = StepTiles<T, kLayers, kHead>;
    const int slots = slots_of<T, Tiles>(op.widest, op.count, op.layers);
    const cuda::Shape shape{.grid = static_cast<unsigned>(op.workers),
                            .block = kThreads,
                            .shared = static_cast<std::size_t>(slots * Tiles::kSlotBytes +
                                                               shared_bytes<T, Tiles>(op.widest, op.count, op.layers)),
                            .cooperative = true};
    if (op.count == 1)
      cuda::launch(stream, "streamed step", shape, streamed_step<T, 1, kLayers, kHead>, op, slots);
    else
      cuda::launch(stream, "streamed step", shape, streamed_step<T, kStreamedSequences, kLayers, kHead>, op, slots);
  });
}

// The step with its phases timed, averaged over the workers.
template <class T>
void profile_step(cuda::Stream& stream, StreamedStep<T> op, cuda::Profile& profile) {
  static constexpr const char* kNames[kStepPhases] = {
      "begin",          "wait for the residual", "project", "advance",         "attend", "wait for the mixer",
      "output product", "wait for the middle",   "gate up", "wait for hidden", "down",   "head"};
  cuda::Scratch scratch(stream);
  std::vector<long long> cycles(static_cast<std::size_t>(op.workers * kStepPhases));
  op.cycles = scratch.take<long long>(std::ssize(cycles));
  stream.copy(op.cycles, cycles.data(), cycles.size() * sizeof(long long));
  launch_step(stream, op);
  stream.copy(cycles.data(), op.cycles, cycles.size() * sizeof(long long));
  int kilohertz = 0, device = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device), "clock rate");
  for (int phase = 0; phase < kStepPhases; ++phase) {
    double sum = 0;
    for (int w = 0; w < op.workers; ++w)
      sum += static_cast<double>(cycles[static_cast<std::size_t>(w * kStepPhases + phase)]);
    profile.add_part(fmt::format("  streamed step: {}", kNames[phase]), sum / op.workers / kilohertz);
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const StreamedStep<T>& op) {
  if (auto* profile = stream.profile())
    profile_step(stream, op, *profile);
  else
    launch_step(stream, op);
}

template <class T>
StreamedLimits streamed_limits(cuda::Stream& stream, Index widest, Index layers, TileFormat format) {
  constexpr int kFewestSlots = 4;
  if (!stream.early_launches() || widest > Index{1} << 20 || layers > 1024) return {};
  const auto slots = [&](int count) {
    return with_formats<T>(format, [&]<TileFormat kLayers, TileFormat kHead>() {
      return slots_of<T, StepTiles<T, kLayers, kHead>>(static_cast<int>(widest), count, static_cast<int>(layers));
    });
  };
  int most = kStreamedSequences;
  while (most > 0 && slots(most) < kFewestSlots) --most;
  return {.workers = stream.multiprocessors(), .sequences = most};
}

template StreamedLimits streamed_limits<float>(cuda::Stream&, Index, Index, TileFormat);
template StreamedLimits streamed_limits<BFloat16>(cuda::Stream&, Index, Index, TileFormat);
template void run(cuda::Stream&, const StreamedStep<float>&);
template void run(cuda::Stream&, const StreamedStep<BFloat16>&);

}  // namespace essh
