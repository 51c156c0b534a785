#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/streamed_step.h"

namespace essh {
namespace {

// The matrices of a product as a kernel parameter.
template <class T>
struct Parts {
  Matrix<const T> matrix[4];
  int count;
  bool paired;
};

// One block packs one tile of rows.
template <class T>
__global__ void pack_tiles(Parts<T> parts, int steps, const Index* places, T* stream) {
  const Index tile = blockIdx.x;
  const Index cols = parts.matrix[0].cols;
  T* to = stream + places[tile] * (kTileBytes / Index{sizeof(T)});
  const auto row_of = [&](int r) -> const T* {
    if (parts.paired) {
      const Index unit = tile * 8 + r % 8;
      return unit < parts.matrix[0].rows ? parts.matrix[r / 8].row(unit) : nullptr;
    }
    Index row = tile * kTileRows + r;
    for (int i = 0; i < parts.count; ++i) {
      if (row < parts.matrix[i].rows) return parts.matrix[i].row(row);
      row -= parts.matrix[i].rows;
    }
    return nullptr;
  };
  for (int i = static_cast<int>(threadIdx.x); i < steps * 32; i += static_cast<int>(blockDim.x)) {
    const int step = i / 32, lane = i % 32;
    constexpr int kRun = 16 / int{sizeof(T)};
    T out[kRun];
    for (int e = 0; e < kRun; ++e) {
      int r, c;
      if constexpr (sizeof(T) == 4) {
        r = lane / 2;
        c = lane % 2 * 4 + e;
      } else {
        // Words of two: (row, 4q), (row + 8, 4q), (row, 4q + 2), (row + 8, 4q + 2).
        r = lane / 4 + (e / 2 % 2) * 8;
        c = lane % 4 * 4 + e / 4 * 2 + e % 2;
      }
      const Index column = Index{step} * kTileColumns<T> + c;
      const T* row = column < cols ? row_of(r) : nullptr;
      out[e] = row ? row[column] : T{};
    }
    for (int e = 0; e < kRun; ++e) to[Index{i} * kRun + e] = out[e];
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const PackTiles<T>& op) {
  Parts<T> parts{.matrix = {}, .count = static_cast<int>(op.parts.size()), .paired = op.paired};
  std::copy(op.parts.begin(), op.parts.end(), parts.matrix);
  cuda::launch(stream, "pack tiles", {.grid = static_cast<unsigned>(op.to.size), .block = 256}, pack_tiles<T>, parts,
               static_cast<int>(op.steps), op.to.data, op.stream);
}

template void run(cuda::Stream&, const PackTiles<float>&);
template void run(cuda::Stream&, const PackTiles<BFloat16>&);

}  // namespace essh
