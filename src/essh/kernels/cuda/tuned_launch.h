#pragma once
#include <bit>
#include <span>

#include "essh/device/cuda/stream.h"
#include "essh/device/tuned_choice.h"

// Launch parameters that are autotuned by device and size. None of them changes a bit of the results. The first of each
// list is the default.
namespace essh::cuda {

// Threads per block of the kernels that carry states through the chunks of a scan.
inline constexpr Index kCarryThreads[] = {128, 32, 64, 256};
// Megabytes of keys and values that the attention blocks in flight read together (BlockOrder).
inline constexpr Index kCacheMegabytes[] = {24, 6, 12, 48, 1 << 20};
// Megabytes of score gradients that attention backward keeps at once.
inline constexpr Index kKeptMegabytes[] = {512, 32, 64, 128, 256};
// Blocks per query of attention row by row; 0 derives them from the number of queries.
inline constexpr Index kRowBlocks[] = {0, 1, 2, 4, 8, 16, 32, 64};
// The row blocks that differ for queries of up to `most` shares.
inline std::span<const Index> row_block_candidates(Index most) {
  return std::span(kRowBlocks).first(2 + std::bit_width(static_cast<std::uint64_t>(most - 1)));
}

// Sizes are tuned by the next power of two, since prompts have any length.
inline Index size_class(Index size) {
  return static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(size)));
}

// Rows of results that a trial writes.
struct Written {
  const void* data;
  Index rows, row_bytes, stride;  // stride in bytes, all even
};
template <class T>
Written written(const Matrix<T>& m) {
  constexpr Index kSize = sizeof(T);
  return {m.data, m.rows, m.cols * kSize, m.stride * kSize};
}

// A hash of the bits of these rows, padding excluded.
std::uint64_t fingerprint(Stream& stream, std::span<const Written> results);

// Launch parameter of `kernel` for these sizes, which name the choice. launch(candidate) overwrites `results` and reads
// nothing that it writes. The default without trials while a CUDA graph is recorded, and if the stream does not tune.
Index tuned_parameter(Stream& stream, const char* kernel, std::span<const Index> sizes,
                      std::span<const Index> candidates, std::span<const Written> results,
                      const std::function<void(Index)>& launch);

}  // namespace essh::cuda
