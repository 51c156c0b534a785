#include "essh/kernels/cuda/device/streamed_launch.cuh"

namespace essh::cuda::device {

template void launch_streamed<BFloat16, TileFormat::FP8, TileFormat::FP8>(Stream&, const StreamedStep<BFloat16>&);

}  // namespace essh::cuda::device
