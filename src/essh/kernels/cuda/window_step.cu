#include <cmath>

#include "essh/kernels/cuda/device/coded_part.cuh"
#include "essh/kernels/cuda/device/window_stream.cuh"
#include "essh/kernels/cuda/row_shares.cuh"
#include "essh/kernels/window_step.h"

namespace essh {
namespace {

using cuda::widen;
using cuda::device::CodedPart;
using cuda::device::Groups;
using cuda::device::is_aligned;
using cuda::device::LanePart;
using cuda::device::Share;
using cuda::device::StepOperands;
using cuda::device::StepShape;
using cuda::device::WeightedSum;

// One kv head of one sequence, and its caches.
template <class T>
struct Step {
  Index width, rows, position, seen;
  int head_dim;
  const T *new_key, *new_value;
  T *keys, *values;

  __device__ Index row_of(Index p) const { return rows == 0 ? p : p % rows; }

  template <int kLanes, bool kAligned>
  __device__ void append(int lane) const {
    using Part = LanePart<T, kAligned>;
    const Index row = row_of(position);
    Part::load(new_key, lane, head_dim).store_to(keys + row * width, lane, head_dim);
    Part::load(new_value, lane, head_dim).store_to(values + row * width, lane, head_dim);
  }

  // The new row is the last row of the last share. It is read from the operands, never from the cache, so that no warp
  // waits for the one that writes it.
  template <int kLanes, bool kAligned, int kSize, int kQueries>
  __device__ __forceinline__ void attend(WeightedSum<T, kSize> (&sums)[kQueries],
                                         const float (&queries)[kQueries][kSize], const Share& share, int lane) const {
    using Part = LanePart<T, kAligned>;
    // In 32 bits: registers are few.
    const int first = static_cast<int>(row_of(position + 1 - seen + share.begin)), ring = static_cast<int>(rows);
    const int cached = share.last ? share.count - 1 : share.count, stride = static_cast<int>(width);
    cuda::device::add_share<Groups::Heads, kLanes, Part>(
        sums, queries, share.count, lane, [&](int r, int place, Part& key, Part& value) {
          int row = first + r;
          if (ring != 0 && row >= ring) row -= ring;
          const Index at = Index{row} * stride;
          key = Part::load(r < cached ? keys + at : new_key, place, head_dim);
          value = Part::load(r < cached ? values + at : new_value, place, head_dim);
        });
  }
};

// The same with caches in eight bits.
template <class T>
struct CodedStep {
  static constexpr int kSize = LanePart<T, true>::kSize;
  using RowPart = CodedPart<kSize>;
  Index width, rows, position, seen;
  int head_dim, kv_head;
  const T *new_key, *new_value;
  std::byte *keys, *values;

  __device__ Index row_of(Index p) const { return rows == 0 ? p : p % rows; }

  template <int kLanes, bool kAligned>
  __device__ void append(int lane) const {
    const Index row = row_of(position) * coded_row_bytes(width, head_dim);
    for (const bool is_key : {true, false}) {
      float x[kSize];
      LanePart<T, kAligned>::load(is_key ? new_key : new_value, lane, head_dim).unpack(x);
      std::byte* const to = (is_key ? keys : values) + row;
      cuda::device::store_coded<kLanes>(x, to + kv_head * head_dim, to + width + kv_head * 2, lane, head_dim);
      if (kv_head == 0 && lane == 0) cuda::device::pad_coded(to, width, head_dim);
    }
  }

  // The new row is rounded to T already, but not to eight bits.
  template <int kLanes, bool kAligned, int kQueries>
  __device__ __forceinline__ void attend(WeightedSum<T, kSize> (&sums)[kQueries],
                                         const float (&queries)[kQueries][kSize], const Share& share, int lane) const {
    const Index first = row_of(position + 1 - seen + share.begin), bytes = coded_row_bytes(width, head_dim);
    const int cached = share.last ? share.count - 1 : share.count;
    cuda::device::add_share<Groups::Heads, kLanes, RowPart>(
        sums, queries, cached, lane, [&](int r, int place, RowPart& key, RowPart& value) {
          Index row = first + r;
          if (rows != 0 && row >= rows) row -= rows;
          const std::byte *k = keys + row * bytes, *v = values + row * bytes;
          key = RowPart::load(k + kv_head * head_dim, k + width + kv_head * 2, place, head_dim);
          value = RowPart::load(v + kv_head * head_dim, v + width + kv_head * 2, place, head_dim);
        });
    if (!share.last) return;
    using Part = LanePart<T, kAligned>;
    cuda::device::add_share<Groups::Heads, kLanes, Part>(sums, queries, 1, lane,
                                                         [&](int, int place, Part& key, Part& value) {
                                                           key = Part::load(new_key, place, head_dim);
                                                           value = Part::load(new_value, place, head_dim);
                                                         });
  }
};

// A group of lanes takes up to kQueries query heads of one kv head of one sequence, and blockIdx.y every gridDim.y-th
// share of their rows. The groups of a warp and the warps of a block take adjacent heads, so that rows of the caches
// are read as a whole: rows of one head alone are short pieces, far apart.
constexpr int kCacheWarps = 8;
template <class T, int kLanes, int kQueries, bool kCoded>
__global__ void __launch_bounds__(32 * kCacheWarps, kQueries == 1 ? 2 : 1)
    attend_cache(StepShape shape, StepOperands<T> x, cuda::device::Shares shares, int warps) {
  constexpr int kSize = LanePart<T, true>::kSize, kGroups = 32 / kLanes;
  const int warp = static_cast<int>(blockIdx.x * kCacheWarps + threadIdx.x / 32);
  if (warp >= warps) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, chunks = (shape.group + kQueries - 1) / kQueries;
  const int items = shape.kv_heads * chunks, of_sequence = (items + kGroups - 1) / kGroups;  // warps of a sequence
  const int sequence = warp / of_sequence, asked = warp % of_sequence * kGroups + lane / kLanes;
  const bool used = asked < items;  // other groups repeat the last one's work
  const int item = used ? asked : items - 1, chunk = item % chunks, kv_head = item / chunks;
  const int kv_column = kv_head * shape.head_dim;
  const Index position = x.positions[sequence];
  const Index seen = position < shape.window ? position + 1 : shape.window;
  const auto step = [&] {
    if constexpr (kCoded)
      return CodedStep<T>{.width = x.k.cols,
                          .rows = shape.rows,
                          .position = position,
                          .seen = seen,
                          .head_dim = shape.head_dim,
                          .kv_head = kv_head,
                          .new_key = x.k.row(sequence) + kv_column,
                          .new_value = x.v.row(sequence) + kv_column,
                          .keys = reinterpret_cast<std::byte*>(x.keys[sequence]),
                          .values = reinterpret_cast<std::byte*>(x.values[sequence])};
    else
      return Step<T>{.width = x.k.cols,
                     .rows = shape.rows,
                     .position = position,
                     .seen = seen,
                     .head_dim = shape.head_dim,
                     .new_key = x.k.row(sequence) + kv_column,
                     .new_value = x.v.row(sequence) + kv_column,
                     .keys = x.keys[sequence] + kv_column,
                     .values = x.values[sequence] + kv_column};
  }();
  const bool aligned = shape.aligned && (kCoded || (is_aligned(step.keys) && is_aligned(step.values)));
  if (shape.appends && blockIdx.y == 0 && used && chunk == 0)
    aligned ? step.template append<kLanes, true>(lane % kLanes) : step.template append<kLanes, false>(lane % kLanes);
  __syncwarp();
  // The last chunk of a group repeats its last head.
  const int first_head = kv_head * shape.group + chunk * kQueries, last_head = (kv_head + 1) * shape.group - 1;
  const auto attend = [&]<bool kAligned>(WeightedSum<T, kSize>(&sums)[kQueries], const Share& share) {
    float queries[kQueries][kSize];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const T* const q = x.q.row(sequence) + min(first_head + i, last_head) * shape.head_dim;
      cuda::device::scale_query(LanePart<T, kAligned>::load(q, lane % kLanes, shape.head_dim), shape.scale, queries[i]);
    }
    step.template attend<kLanes, kAligned>(sums, queries, share, lane);
  };
  cuda::device::attend_shares<T, kLanes, kQueries, 32 * kCacheWarps>(
      shares, {Index{sequence} * items + item, warp, used}, seen, shape.head_dim, lane,
      [&](WeightedSum<T, kSize>(&sums)[kQueries], const Share& share) {
        aligned ? attend.template operator()<true>(sums, share) : attend.template operator()<false>(sums, share);
      },
      [&](int i, int place, const WeightedSum<T, kSize>& sum) {
        if (first_head + i <= last_head)
          cuda::device::write_part(sum, place, shape.head_dim, x.out.row(sequence) + (first_head + i) * shape.head_dim);
      });
}

// Calls body with the number of query heads of a group of lanes; they read the same keys.
template <class Body>
void with_queries(Index group, const Body& body) {
  if (group == 1)
    body.template operator()<1>();
  else if (group == 2)
    body.template operator()<2>();
  else
    body.template operator()<4>();
}

template <class T>
StepShape shape_of(const WindowStep<T>& op, bool aligned, bool appends) {
  return {.kv_heads = static_cast<int>(op.k.cols / op.head_dim),
          .group = static_cast<int>(op.q.cols / op.k.cols),
          .head_dim = static_cast<int>(op.head_dim),
          .window = op.window,
          .rows = op.rows,
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(op.head_dim))),
          .aligned = aligned,
          .appends = appends};
}

// How all heads of a step are streamed together; without slots if they are not. A function of the model's shape: bits
// do not depend on the batch. Rows in bf16 are not streamed: that is slower than attend_cache().
cuda::device::StreamShape stream_shape(const cuda::Stream& stream, const WindowStep<BFloat16>& op) {
  using namespace cuda::device;
  const Index kv_heads = op.k.cols / op.head_dim, group = op.q.cols / op.k.cols;
  const bool fits = op.coded && stream.early_launches() && (op.head_dim == 64 || op.head_dim == 128) && kv_heads >= 8 &&
                    kv_heads <= kStreamHeads && group * kv_heads <= kStreamHeads && group <= 2;
  if (!fits) return {};
  constexpr Index kSlotRows = 8;
  const Index row = coded_row_bytes(op.k.cols, op.head_dim);
  const Index slots = std::min<Index>(kStreamSlots, kStreamMemory / (2 * kSlotRows * row));
  return {static_cast<int>(row), int{kSlotRows}, slots < 2 ? 0 : static_cast<int>(slots)};
}

void run_streamed(cuda::Stream& stream, const WindowStep<BFloat16>& op, const cuda::device::StreamShape& rows) {
  using namespace cuda::device;
  const Index kv_heads = op.k.cols / op.head_dim, group = op.q.cols / op.k.cols, sequences = op.q.rows;
  const Index seen = std::min(op.longest, op.window);
  cuda::Scratch scratch(stream);
  const auto shares = cuda::shares_of(stream, scratch, sequences * kv_heads * group, 1, seen, op.head_dim);
  const StepOperands<BFloat16> x{op.q, op.k, op.v, op.keys.data, op.values.data, op.positions.data, op.out};
  const auto shape = shape_of(op, true, true);
  const auto launch = [&]<int kLanes, int kQueries, int kHeads>() {
    const auto warps = static_cast<unsigned>(std::min<Index>(kv_heads, kStreamWarps));
    const Index blocks = std::min<Index>(stream.multiprocessors(), sequences * shares.most);
    cuda::launch(stream, "coded window step",
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(32 * (warps + 1)),
                  .shared = static_cast<std::size_t>(rows.slots) * static_cast<std::size_t>(rows.slot_bytes())},
                 attend_streamed<kLanes, kQueries, kHeads>, shape, x, shares, static_cast<int>(sequences), rows);
  };
  const auto with_heads = [&]<int kLanes>() {
    if (group == 2)
      launch.template operator()<kLanes, 2, 1>();
    else if (kv_heads > kStreamWarps)
      launch.template operator()<kLanes, 1, 2>();
    else
      launch.template operator()<kLanes, 1, 1>();
  };
  op.head_dim == 128 ? with_heads.template operator()<16>() : with_heads.template operator()<8>();
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const WindowStep<T>& op) {
  cuda::check_head_dim(op.head_dim);
  ESSH_ASSERT((op.rows == 0 || op.rows >= op.window) && (!op.coded || op.head_dim % 8 == 0));
  const Index kv_heads = op.k.cols / op.head_dim, group = op.q.cols / op.k.cols;
  if (op.q.rows * kv_heads == 0) return;
  if constexpr (sizeof(T) == 2) {
    const auto rows = stream_shape(stream, op);
    if (rows.slots > 0 && cuda::all_aligned(op.q, op.k, op.v)) return run_streamed(stream, op, rows);
  }
  with_queries(group, [&]<int kQueries>() {
    const Index items = kv_heads * ((group + kQueries - 1) / kQueries);  // of a sequence
    const Index seen = std::min(op.longest, op.window);
    cuda::Scratch scratch(stream);
    const auto shares = cuda::shares_of(stream, scratch, op.q.rows * items, kQueries, seen, op.head_dim);
    const auto launch = [&](Index blocks, const Index* positions, bool appends) {
      const StepOperands<T> x{op.q, op.k, op.v, op.keys.data, op.values.data, positions, op.out};
      cuda::with_lanes<T>(op.head_dim, cuda::all_aligned(op.q, op.k, op.v), [&]<int kLanes, bool kAligned>() {
        const auto shape = shape_of(op, kAligned, appends);
        const Index warps = op.q.rows * ((items * kLanes + 31) / 32);
        const auto grid = cuda::row_blocks<T, kQueries, 32 * kCacheWarps>(stream, warps, shares, blocks);
        if (op.coded)
          cuda::launch(stream, "coded window step", grid, attend_cache<T, kLanes, kQueries, true>, shape, x, shares,
                       static_cast<int>(warps));
        else
          cuda::launch(stream, "window step", grid, attend_cache<T, kLanes, kQueries, false>, shape, x, shares,
                       static_cast<int>(warps));
      });
    };
    // A ring is tried as if it were full, since its first step, at the beginning of a text, says little. The trials
    // read whatever the caches hold and append nothing.
    const Index* tried = op.rows == 0 ? op.positions.data : nullptr;
    const auto attempt = [&](Index blocks) {
      if (!tried) {
        const std::vector<Index> last(static_cast<std::size_t>(op.q.rows), seen - 1);
        auto* positions = scratch.take<Index>(op.q.rows);
        stream.copy(positions, last.data(), last.size() * sizeof(Index));
        tried = positions;
      }
      launch(blocks, tried, false);
    };
    const Index sizes[] = {sizeof(T), op.head_dim, kQueries, op.q.rows * items, cuda::size_class(shares.most)};
    const cuda::Written results[] = {cuda::written(op.out)};
    const Index blocks =
        cuda::tuned_row_blocks(stream, op.coded ? "coded window step" : "window step", sizes, shares, results, attempt);
    launch(blocks, op.positions.data, true);
  });
}

template void run(cuda::Stream&, const WindowStep<BFloat16>&);
template void run(cuda::Stream&, const WindowStep<float>&);

}  // namespace essh
