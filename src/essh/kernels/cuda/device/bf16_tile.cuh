#pragma once
#include "essh/base/bfloat16.h"
#include "essh/kernels/cuda/device/mma.cuh"

// Swizzled tiles of 64 bf16 columns in shared memory. A row is 128 bytes, eight chunks of 16; chunk c of row r is
// stored at chunk c ^ (r % 8), so that reading one column chunk of eight consecutive rows has no bank conflicts.
namespace essh::cuda::device {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = 128;

__host__ __device__ constexpr std::uint32_t tile_offset(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kTileRowBytes + ((chunk ^ (row & 7)) << 4));
}

// Copies rows of a matrix into tiles, 16 bytes per thread at a time.
template <int kThreads>
class TileLoader {
 public:
  __device__ TileLoader(const BFloat16* from, std::int64_t stride)
      : row_(static_cast<int>(threadIdx.x) / 8), stride_(stride) {
    const int chunk = static_cast<int>(threadIdx.x) % 8;
    from_ = from + row_ * stride + chunk * 8;
    offset_ = tile_offset(row_, chunk);
  }
  // Starts the asynchronous copy of the next kRows rows; rows from `rows` on become zero.
  template <int kRows>
  __device__ __forceinline__ void load(std::uint32_t tile, int rows) {
    constexpr int kStep = kThreads / 8;
    static_assert(kStep % 8 == 0);
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i)
      copy_async(tile + offset_ + i * kStep * kTileRowBytes, from_ + i * kStep * stride_, row_ + i * kStep < rows);
    from_ += kRows * stride_;
  }

 private:
  int row_;
  std::int64_t stride_;
  const BFloat16* from_;
  std::uint32_t offset_;
};

// Rows 16i .. 16i + 15 of a tile as operands of a product. `across` is the lane's address for the first 16 rows and 16
// columns; columns advance by an exclusive or, because the swizzle stays within a row.
class TileReader {
 public:
  // Four 8 x 8 blocks in the order (upper, left), (lower, left), (upper, right), (lower, right): the A operand of rows
  // x columns; loaded transposed, the B operands of two products summed over rows, for columns 0 .. 7 and 8 .. 15.
  __device__ static TileReader rows(std::uint32_t tile, int lane) { return TileReader(tile, lane % 16, lane / 16); }
  // In the order (upper, left), (upper, right), (lower, left), (lower, right): the B operands of two products summed
  // over columns, for rows 0 .. 7 and 8 .. 15.
  __device__ static TileReader columns(std::uint32_t tile, int lane) {
    return TileReader(tile, lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }

  // The address for rows from 16 * row_step and columns from 16 * column_step, `bytes` further in shared memory.
  __device__ std::uint32_t at(int row_step, int column_step, std::uint32_t bytes = 0) const {
    return (across_ ^ static_cast<std::uint32_t>(column_step * 32)) +
           static_cast<std::uint32_t>(row_step * 16 * kTileRowBytes) + bytes;
  }

 private:
  __device__ TileReader(std::uint32_t tile, int row, int chunk) : across_(tile + tile_offset(row, chunk)) {}
  std::uint32_t across_;
};

// The A operand of 16 rows from the sums of two adjacent products.
__device__ __forceinline__ void as_operand(Word (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack(left[0], left[1]);
  a[1] = pack(left[2], left[3]);
  a[2] = pack(right[0], right[1]);
  a[3] = pack(right[2], right[3]);
}

// Stores rows 16 m + g and 16 m + g + 8 of eight adjacent products, each times its factor, rounded into a tile.
__device__ __forceinline__ void store_sums(unsigned char* tile, int row, int lane, const float (&sums)[8][4],
                                           float upper, float lower) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    *reinterpret_cast<Word*>(tile + tile_offset(row + g, n) + t * 4) = pack(sums[n][0] * upper, sums[n][1] * upper);
    *reinterpret_cast<Word*>(tile + tile_offset(row + g + 8, n) + t * 4) = pack(sums[n][2] * lower, sums[n][3] * lower);
  }
}

// A warp writes those of rows [first, first + 32) of a tile that are below `rows` to a matrix whose row 0 is the
// tile's.
__device__ __forceinline__ void store_rows(BFloat16* to, std::int64_t stride, const unsigned char* tile, int first,
                                           int rows, int lane) {
  const int chunk = lane % 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = first + i * 4 + lane / 8;
    if (row < rows)
      *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + tile_offset(row, chunk));
  }
}

}  // namespace essh::cuda::device
