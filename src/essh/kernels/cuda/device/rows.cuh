#pragma once
#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"

namespace essh::cuda {

template <int N, class Element>
__global__ void each_pack_kernel(Element element, Index rows, Index packs) {
  const Index count = rows * packs;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += Index{gridDim.x} * blockDim.x)
    element.template at<N>(i / packs, i % packs * N);
}

// Calls element.at<N>(row, column) for every run of N elements of a rows x columns matrix.
template <int N, class Element>
void each_pack(Stream& stream, const char* name, Index rows, Index columns, const Element& element) {
  const Index packs = columns / N, count = rows * packs;
  constexpr int kThreads = 256;
  const unsigned blocks =
      static_cast<unsigned>(std::min<Index>((count + kThreads - 1) / kThreads, Index{stream.multiprocessors()} * 16));
  launch(stream, name, {blocks, kThreads}, each_pack_kernel<N, Element>, element, rows, packs);
}

}  // namespace essh::cuda
