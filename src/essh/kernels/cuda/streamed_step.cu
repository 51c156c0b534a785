#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/streamed_worker.cuh"

namespace essh {
namespace {

using namespace cuda::device;

template <class T, int kMost>
__global__ void __launch_bounds__(kThreads, 1) streamed_step(const __grid_constant__ StreamedStep<T> op, int slots) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<T> shared(memory + slots * kSlotBytes, op.layers);
  const TileRing ring{memory, shared.barriers, shared.barriers + 16, slots};
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int worker = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) ring.init(kWarps);
  __syncthreads();
  if (warp == kWarps) {
    if (lane == 0) stream_weights(op, ring, worker);
  } else if (warp > kWarps) {
    auto* to = reinterpret_cast<uint4*>(op.exchange_again);
    for (Index i = Index{worker} * 32 + lane; i < op.exchange_again_bytes / 16; i += Index{op.workers} * 32)
      to[i] = uint4{kUnsent, kUnsent, kUnsent, kUnsent};
  } else {
    Worker<T, kMost>{.op = op,
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

template <class T>
int slots_of(int widest, int count, int layers) {
  constexpr int kMemory = 227 * 1024, kMostSlots = 16;
  return std::min(kMostSlots, (kMemory - Shared<T>::bytes(widest, count, layers)) / kSlotBytes);
}

template <class T>
void launch_step(cuda::Stream& stream, const StreamedStep<T>& op) {
  ESSH_ASSERT(op.count >= 1 && op.count <= kStreamedSequences);
  const int slots = slots_of<T>(op.widest, op.count, op.layers);
  const cuda::Shape shape{
      .grid = static_cast<unsigned>(op.workers),
      .block = kThreads,
      .shared = static_cast<std::size_t>(slots * kSlotBytes + Shared<T>::bytes(op.widest, op.count, op.layers)),
      .cooperative = true};
  if (op.count == 1)
    cuda::launch(stream, "streamed step", shape, streamed_step<T, 1>, op, slots);
  else
    cuda::launch(stream, "streamed step", shape, streamed_step<T, kStreamedSequences>, op, slots);
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
StreamedLimits streamed_limits(cuda::Stream& stream, Index widest, Index layers) {
  constexpr int kFewestSlots = 4;
  if (!stream.early_launches() || widest > Index{1} << 20 || layers > 1024) return {};
  int most = kStreamedSequences;
  while (most > 0 && slots_of<T>(static_cast<int>(widest), most, static_cast<int>(layers)) < kFewestSlots) --most;
  return {.workers = stream.multiprocessors(), .sequences = most};
}

template StreamedLimits streamed_limits<float>(cuda::Stream&, Index, Index);
template StreamedLimits streamed_limits<BFloat16>(cuda::Stream&, Index, Index);
template void run(cuda::Stream&, const StreamedStep<float>&);
template void run(cuda::Stream&, const StreamedStep<BFloat16>&);

}  // namespace essh
