#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/streamed_step.h"

namespace essh {
namespace {

// The matrices of a product as a kernel parameter.
template <class M>
struct Parts {
  M matrix[4];
  int count;
  bool paired;

  // The matrix of row r of a tile, and the row within it; null for padding.
  __device__ const M* find(Index tile, int r, Index& row) const {
    if (paired) {
      row = tile * 8 + r % 8;
      return row < matrix[0].rows ? &matrix[r / 8] : nullptr;
    }
    row = tile * kTileRows + r;
    for (int i = 0; i < count; ++i) {
      if (row < matrix[i].rows) return &matrix[i];
      row -= matrix[i].rows;
    }
    return nullptr;
  }
};

template <class M>
Parts<M> parts_of(const std::vector<M>& matrices, bool paired) {
  ESSH_ASSERT(!matrices.empty() && matrices.size() <= 4);
  Parts<M> parts{.matrix = {}, .count = static_cast<int>(matrices.size()), .paired = paired};
  std::copy(matrices.begin(), matrices.end(), parts.matrix);
  return parts;
}

// One block packs one tile of rows.
template <class T>
__global__ void pack_tiles(Parts<Matrix<const T>> parts, int steps, const Index* places, std::byte* stream) {
  const Index tile = blockIdx.x;
  const Index cols = parts.matrix[0].cols;
  T* to = reinterpret_cast<T*>(stream + places[tile]);
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
      const Index column = Index{step} * tile_columns<T>(TileFormat::Plain) + c;
      Index row = 0;
      const auto* matrix = column < cols ? parts.find(tile, r, row) : nullptr;
      out[e] = matrix ? matrix->row(row)[column] : T{};
    }
    for (int e = 0; e < kRun; ++e) to[Index{i} * kRun + e] = out[e];
  }
}

// The code of one element: of Q8 as a sign in bit 7 and a magnitude, else as stored. `row` may be null: zero.
__device__ unsigned code_of(TileFormat format, const unsigned char* row, Index column, Index cols) {
  const bool inside = row != nullptr && column < cols;
  if (format == TileFormat::Q4) return inside ? row[column / 2] >> (column % 2 * 4) & 15u : 8u;
  const unsigned code = inside ? row[column] : 0u;
  if (format == TileFormat::FP8) return code;
  return code & 0x80u ? 0x80u | (0x100u - code) : code;
}

__device__ unsigned packed_word(TileFormat format, const unsigned char* row, Index column, Index cols) {
  unsigned word = 0;
  if (format == TileFormat::Q4) {
    for (int i = 0; i < 8; ++i) word |= code_of(format, row, column + i, cols) << (i / 2 * 4 + i % 2 * 16);
    return word;
  }
  for (int half = 0; half < 2; ++half) {
    const unsigned first = code_of(format, row, column + half, cols),
                   second = code_of(format, row, column + half + 2, cols);
    const unsigned bits = format == TileFormat::Q8
                              ? (first & 0x80u) << 8 | (second & 0x7fu) << 8 | (second & 0x80u) | (first & 0x7fu)
                              : first | second << 8;
    word |= bits << (16 * half);
  }
  return word;
}

__global__ void pack_coded_tiles(TileFormat format, Parts<CodedMatrix> parts, int steps, const Index* places,
                                 std::byte* stream) {
  const Index tile = blockIdx.x;
  const Index cols = parts.matrix[0].cols;
  const int words = format == TileFormat::Q4 ? 2 : 4;  // of a lane
  for (int i = static_cast<int>(threadIdx.x); i < steps * 32; i += static_cast<int>(blockDim.x)) {
    const int step = i / 32, lane = i % 32;
    auto* to = reinterpret_cast<unsigned*>(stream + places[tile] + Index{step} * tile_bytes(format));
    unsigned scales = 0;
    for (int r = 0; r < 2; ++r) {
      Index row = 0;
      const auto* matrix = parts.find(tile, lane / 4 + 8 * r, row);
      const auto* codes =
          matrix ? reinterpret_cast<const unsigned char*>(matrix->codes + row * matrix->code_stride) : nullptr;
      if (matrix) scales |= unsigned{matrix->scales[row * matrix->scale_stride + step].bits} << (16 * r);
      for (int w = r; w < words; w += 2)
        to[lane * words + w] = packed_word(format, codes, Index{step} * kTileGroup + lane % 4 * 8 + w / 2 * 4, cols);
    }
    if (lane % 4 == 0) to[32 * words + lane / 4] = scales;
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const PackTiles<T>& op) {
  cuda::launch(stream, "pack tiles", {.grid = static_cast<unsigned>(op.to.size), .block = 256}, pack_tiles<T>,
               parts_of(op.parts, op.paired), static_cast<int>(op.steps), op.to.data, op.stream);
}

void run(cuda::Stream& stream, const PackCodedTiles& op) {
  ESSH_ASSERT(op.format != TileFormat::Plain);
  cuda::launch(stream, "pack coded tiles", {.grid = static_cast<unsigned>(op.to.size), .block = 256}, pack_coded_tiles,
               op.format, parts_of(op.parts, op.paired), static_cast<int>(op.steps), op.to.data, op.stream);
}

template void run(cuda::Stream&, const PackTiles<float>&);
template void run(cuda::Stream&, const PackTiles<BFloat16>&);

}  // namespace essh
