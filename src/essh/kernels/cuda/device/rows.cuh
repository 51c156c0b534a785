#pragma once
#include <cstdint>
#include <limits>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh::cuda {

// I is the index type: if 32 bits suffice, division is several times faster.
template <int N, class I, class Element>
__global__ void each_pack_kernel(Element element, I count, I packs) {
  after_previous();
  for (I i = I{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += I{gridDim.x} * blockDim.x) {
    const I row = i / packs;
    element.template at<N>(static_cast<Index>(row), static_cast<Index>(i - row * packs) * N);
  }
}

// Calls element.at<N>(row, column) for every N consecutive elements of a rows x columns matrix.
template <int N, class Element>
void each_pack(Stream& stream, const char* name, Index rows, Index columns, const Element& element, bool early = true) {
  const Index packs = columns / N, count = rows * packs;
  constexpr int kThreads = 256;
  const unsigned blocks =
      static_cast<unsigned>(std::min<Index>((count + kThreads - 1) / kThreads, Index{stream.multiprocessors()} * 16));
  const auto launch_with = [&]<class I>(I) {
    launch(stream, name, {blocks, kThreads, 0, early}, each_pack_kernel<N, I, Element>, element, static_cast<I>(count),
           static_cast<I>(packs));
  };
  // Signed maximum for an unsigned index: a thread's last increment goes beyond the count.
  if (count <= std::numeric_limits<std::int32_t>::max())
    launch_with(std::uint32_t{});
  else
    launch_with(std::uint64_t{});
}

}  // namespace essh::cuda
