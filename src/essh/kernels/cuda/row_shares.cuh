#pragma once
#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/attention_rows.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"
#include "essh/kernels/cuda/tuned_launch.h"

// Splits the attention of single queries over the GPU.
namespace essh::cuda {

// One arrival counter per warp whose shares are split over several blocks; zero between kernels. Old counters stay
// allocated, because recorded launches keep using them; new ones are never allocated while recording.
class ShareCounters {
 public:
  explicit ShareCounters(Stream&) {}

  unsigned* at_least(Stream& stream, Index count) {
    if (counters_.empty() || counters_.back().size() < count) {
      const Index size = std::max(count, counters_.empty() ? kFewest : 2 * counters_.back().size());
      Array<unsigned> more(Device::Cuda, size, "attention counters");
      check(cudaMemsetAsync(more.data(), 0, more.bytes(), stream.handle()), "attention counters");
      counters_.push_back(std::move(more));
    }
    return counters_.back().data();
  }

 private:
  static constexpr Index kFewest = 4096;
  std::vector<Array<unsigned>> counters_;
};

// Space for the shares of `items` items of `queries` queries that see up to `seen` rows each.
inline device::Shares shares_of(Stream& stream, Scratch& scratch, Index items, Index queries, Index seen,
                                Index head_dim) {
  const Index most = device::most_shares(seen);
  if (most <= 1) return {1, nullptr, nullptr};
  return {static_cast<int>(most),
          scratch.take<float>(items * queries * most * device::share_floats(static_cast<int>(head_dim))),
          stream.attachment<ShareCounters>().at_least(stream, items)};
}
// For `warps` warps in blocks of kThreads: `blocks` for the shares of each, at most one per share. 0 (the default of
// kRowBlocks): one, if that makes enough warps to fill the GPU twice, or one per span if these fill it once, else one
// per share.
template <class T, int kQueries, int kThreads>
Shape row_blocks(const Stream& stream, Index warps, const device::Shares& shares, Index blocks) {
  constexpr Index kWarps = 15;  // that fill a multiprocessor
  const unsigned across = blocks_for(warps, kThreads / 32);
  if (blocks == 0) {
    const Index spans = device::spans_of(shares.most), full = kWarps * stream.multiprocessors();
    blocks = warps >= 2 * full ? 1 : warps * spans >= full ? spans : shares.most;
  }
  return {.grid = dim3(across, static_cast<unsigned>(std::clamp<Index>(blocks, 1, shares.most))),
          .block = dim3(kThreads),
          .shared = device::kept_bytes<T, kQueries, kThreads>()};
}
// The tuned `blocks` of a kernel over these shares.
inline Index tuned_row_blocks(Stream& stream, const char* kernel, std::span<const Index> sizes,
                              const device::Shares& shares, std::span<const Written> results,
                              const std::function<void(Index)>& launch) {
  if (shares.most == 1) return kRowBlocks[0];
  return tuned_parameter(stream, kernel, sizes, row_block_candidates(shares.most), results, launch);
}

// Whether the rows of these matrices can be read 16 bytes at a time.
template <class... T>
bool all_aligned(const Matrix<T>&... m) {
  return (aligned(m, kWide<T>) && ...);
}

// Calls body.operator()<kLanes, kAligned>() with the number of lanes that hold a row of head_dim elements of T.
template <class T, class Body>
void with_lanes(Index head_dim, bool aligned, const Body& body) {
  constexpr int kFull = device::kRowMaxColumns * int{sizeof(T)} / 16, kHalf = kFull / 2;
  aligned = aligned && head_dim * Index{sizeof(T)} % 16 == 0;
  if (2 * head_dim <= device::kRowMaxColumns)
    aligned ? body.template operator()<kHalf, true>() : body.template operator()<kHalf, false>();
  else
    aligned ? body.template operator()<kFull, true>() : body.template operator()<kFull, false>();
}

// Throws if no kernel supports heads of this size.
inline void check_head_dim(Index head_dim) {
  if (head_dim > device::kRowMaxColumns)
    fail(ErrorKind::Unsupported, "attention heads of {} dimensions: CUDA kernels take up to {}; use the CPU", head_dim,
         device::kRowMaxColumns);
}

}  // namespace essh::cuda
