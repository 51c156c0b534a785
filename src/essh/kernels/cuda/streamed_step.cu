#include "essh/kernels/cuda/device/streamed_launch.cuh"
#include "essh/kernels/cuda/few_row_product.h"

namespace essh {
namespace {

using namespace cuda::device;

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

template <class T>
void launch_step(cuda::Stream& stream, const StreamedStep<T>& op) {
  ESSH_ASSERT(op.count >= 1 && op.count <= kStreamedSequences);
  ESSH_ASSERT(streamed_formats<T>(op.layer_format, op.head_format));
  with_formats<T>(op.layer_format,
                  [&]<TileFormat kLayers, TileFormat kHead>() { launch_streamed<T, kLayers, kHead>(stream, op); });
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
      return slots_of<T, StepTiles<T, kLayers, kHead>>(static_cast<int>(widest), static_cast<int>(widest), count,
                                                       static_cast<int>(layers));
    });
  };
  int most = kStreamedSequences;
  while (most > 0 && slots(most) < kFewestSlots) --most;
  StreamedLimits limits{.workers = stream.multiprocessors(), .sequences = most};
  // Measured: docs/performance.md, "Five to eight".
  if (sizeof(T) == 2 && format == TileFormat::Plain && few_row_products(stream)) limits.faster_pairs = 200;
  return limits;
}

template StreamedLimits streamed_limits<float>(cuda::Stream&, Index, Index, TileFormat);
template StreamedLimits streamed_limits<BFloat16>(cuda::Stream&, Index, Index, TileFormat);
template void run(cuda::Stream&, const StreamedStep<float>&);
template void run(cuda::Stream&, const StreamedStep<BFloat16>&);

}  // namespace essh
