#pragma once
#include <algorithm>

#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/cuda/device/attention_rows.cuh"
#include "essh/kernels/cuda/device/vectors.cuh"

// How attention of single queries is shared out over the GPU.
namespace essh::cuda {

// One counter for each query whose keys are split; zero between kernels.
class ShareCounters {
 public:
  static constexpr Index kBlocksPerMultiprocessor = 8;

  explicit ShareCounters(Stream& stream)
      : counters_(Device::Cuda, kBlocksPerMultiprocessor * stream.multiprocessors(), "attention counters") {
    check(cudaMemsetAsync(counters_.data(), 0, counters_.bytes(), stream.handle()), "attention counters");
  }
  unsigned* data() const { return counters_.data(); }

 private:
  Array<unsigned> counters_;
};

// Splits the keys of `queries` queries, `rows` at most each, until there is a block for every place on the GPU, or too
// few keys in a share to be worth it.
inline device::Shares share_rows(Stream& stream, Scratch& scratch, Index queries, Index rows, Index head_dim) {
  constexpr Index kFewestRows = 128;
  const Index wanted = ShareCounters::kBlocksPerMultiprocessor * stream.multiprocessors() / std::max<Index>(1, queries);
  const Index splits = std::clamp<Index>(wanted, 1, std::max<Index>(1, (rows + kFewestRows - 1) / kFewestRows));
  if (splits == 1) return {1, nullptr, nullptr};
  return {static_cast<int>(splits), scratch.take<float>(queries * splits * (head_dim + 2)),
          stream.attachment<ShareCounters>().data()};
}

// May the rows of these matrices be read 16 bytes at a time?
template <class... T>
bool all_aligned(const Matrix<T>&... m) {
  return (aligned(m, kWide<T>) && ...);
}

// Calls body.operator()<kLanes, kAligned>() with the lanes that hold a row of head_dim elements of T.
template <class T, class Body>
void with_lanes(Index head_dim, bool aligned, const Body& body) {
  constexpr int kFull = device::kRowMaxColumns * int{sizeof(T)} / 16, kHalf = kFull / 2;
  aligned = aligned && head_dim * Index{sizeof(T)} % 16 == 0;
  if (2 * head_dim <= device::kRowMaxColumns)
    aligned ? body.template operator()<kHalf, true>() : body.template operator()<kHalf, false>();
  else
    aligned ? body.template operator()<kFull, true>() : body.template operator()<kFull, false>();
}

// Throws when no kernel takes heads of this size.
inline void check_head_dim(Index head_dim) {
  if (head_dim > device::kRowMaxColumns)
    fail(ErrorKind::Unsupported, "attention heads of {} dimensions: CUDA kernels take up to {}; use the CPU", head_dim,
         device::kRowMaxColumns);
}

}  // namespace essh::cuda
