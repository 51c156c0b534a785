#include <cmath>

#include "essh/kernels/cuda/device/attention_mma.cuh"
#include "essh/kernels/cuda/device/attention_mma_queries.cuh"
#include "essh/kernels/cuda/device/attention_tiles.cuh"
#include "essh/kernels/cuda/row_shares.cuh"
#include "essh/kernels/cuda/tuned_launch.h"
#include "essh/kernels/window_attention.h"

namespace essh {
namespace {

using cuda::device::AttentionShape;
using cuda::device::BackwardOperands;
using cuda::device::BlockOrder;
using cuda::device::ForwardOperands;
using cuda::device::ScoreBlocks;
using cuda::device::TileMath;

// Up to this many queries per sequence are attended one by one, each split over blocks.
constexpr Index kFewQueries = 8;
constexpr Index kDeltaThreads = 256;

AttentionShape shape_of(Index heads, Index kv_heads, Index head_dim, Index queries, Index past, Index window) {
  ESSH_ASSERT(past + queries < Index{1} << 30);  // positions are int on the device
  return {.heads = static_cast<int>(heads),
          .group = static_cast<int>(heads / kv_heads),
          .head_dim = static_cast<int>(head_dim),
          .queries = static_cast<int>(queries),
          .past = static_cast<int>(past),
          .window = static_cast<int>(std::min(window, past + queries)),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))};
}

// Blocks of `per_block` rows of every slice. `slice_bytes` is the memory read by the blocks of a slice together, and
// `megabytes` that of a group of slices (kCacheMegabytes).
BlockOrder order_of(Index slices, Index rows, Index per_block, Index slice_bytes, Index megabytes) {
  return {.slices = static_cast<int>(slices),
          .blocks = static_cast<int>((rows + per_block - 1) / per_block),
          .group = static_cast<int>(std::clamp<Index>((megabytes << 20) / std::max<Index>(1, slice_bytes), 1, slices))};
}

// Calls launch(megabytes) with the tuned size of a group. `bytes` are those of all slices.
void launch_in_order(cuda::Stream& stream, const char* kernel, const AttentionShape& shape, Index slices, Index element,
                     Index bytes, std::span<const cuda::Written> results, const std::function<void(Index)>& launch) {
  constexpr Index kOneGroup = Index{6} << 20;  // the smallest candidate
  if (bytes <= kOneGroup) return launch(cuda::kCacheMegabytes[0]);
  const Index sizes[] = {element,
                         shape.head_dim,
                         shape.group,
                         cuda::size_class(slices),
                         cuda::size_class(shape.queries),
                         cuda::size_class(shape.window)};
  launch(cuda::tuned_parameter(stream, kernel, sizes, cuda::kCacheMegabytes, results, launch));
}

dim3 grid_of(const BlockOrder& order) {
  return dim3(static_cast<unsigned>(order.slices) * static_cast<unsigned>(order.blocks));
}

// Calls body with the tile size that fits in shared memory for heads of this size.
template <class Body>
void with_tiles(Index head_dim, const Body& body) {
  if (head_dim <= 64)
    body.template operator()<4, 1>();
  else
    body.template operator()<2, 2>();
}

// Keys and values that a query head reads.
template <class T>
Index slice_bytes(const AttentionShape& shape) {
  return 2 * (Index{shape.past} + shape.queries) * shape.head_dim * Index{sizeof(T)};
}

template <class T>
void attend_rows(cuda::Stream& stream, const AttentionShape& shape, Index slices, const ForwardOperands<T>& x,
                 bool aligned) {
  cuda::Scratch scratch(stream);
  const Index queries = slices * shape.queries;
  const auto shares = cuda::shares_of(stream, scratch, queries, 1, shape.window, shape.head_dim);
  const auto launch = [&](Index blocks) {
    cuda::with_lanes<T>(shape.head_dim, aligned, [&]<int kLanes, bool kAligned>() {
      cuda::launch(stream, "window attention of few queries",
                   cuda::row_blocks<T, 1, cuda::device::kRowThreads>(stream, queries, shares, blocks),
                   cuda::device::attention_rows_forward<T, kLanes, kAligned>, shape, x, shares,
                   static_cast<int>(queries));
    });
  };
  const Index sizes[] = {sizeof(T), shape.head_dim, cuda::size_class(queries), cuda::size_class(shares.most)};
  const cuda::Written results[] = {cuda::written(x.out), cuda::written(x.log_sum)};
  launch(cuda::tuned_row_blocks(stream, "attention rows", sizes, shares, results, launch));
}

template <class T>
void attend_tiles(cuda::Stream& stream, const AttentionShape& shape, Index slices, const ForwardOperands<T>& x,
                  Index megabytes) {
  with_tiles(shape.head_dim, [&]<int kReach, int kParts>() {
    using Math = TileMath<kReach, kParts>;
    const Math math(shape.head_dim);
    const auto order = order_of(slices, shape.queries, Math::kRows, slice_bytes<T>(shape) / shape.group, megabytes);
    cuda::launch(stream, "window attention",
                 {.grid = grid_of(order),
                  .block = dim3(Math::kThreads),
                  .shared = static_cast<std::size_t>(math.forward_shared())},
                 cuda::device::attention_tiles_forward<T, kReach, kParts>, shape, order, x);
  });
}

template <class T>
void attend_tiles_backward(cuda::Stream& stream, const AttentionShape& shape, Index slices,
                           const BackwardOperands<T>& x, Index megabytes) {
  with_tiles(shape.head_dim, [&]<int kReach, int kParts>() {
    using Math = TileMath<kReach, kParts>;
    const Math math(shape.head_dim);
    const Index bytes = slice_bytes<T>(shape);
    const auto launch = [&](const char* name, const BlockOrder& order, auto kernel) {
      cuda::launch(stream, name,
                   {.grid = grid_of(order),
                    .block = dim3(Math::kThreads),
                    .shared = static_cast<std::size_t>(math.backward_shared())},
                   kernel, shape, order, x);
    };
    launch("window attention backward, keys",
           order_of(slices / shape.group, shape.queries, Math::kRows, bytes * shape.group, megabytes),
           cuda::device::attention_tiles_backward<T, kReach, kParts, true>);
    launch("window attention backward, queries",
           order_of(slices, shape.queries, Math::kRows, bytes / shape.group, megabytes),
           cuda::device::attention_tiles_backward<T, kReach, kParts, false>);
  });
}

// The tensor-core kernels need 64-dimensional bf16 heads in rows of whole 16-byte pieces.
template <class T>
bool on_tensor_cores(Index head_dim, bool aligned) {
  return std::is_same_v<T, BFloat16> && head_dim == cuda::device::kTileColumns && aligned;
}

void attend_mma(cuda::Stream& stream, const AttentionShape& shape, Index slices, const ForwardOperands<BFloat16>& x,
                Index megabytes) {
  const auto order =
      order_of(slices, shape.queries, cuda::device::kMmaRows, slice_bytes<BFloat16>(shape) / shape.group, megabytes);
  cuda::launch(
      stream, "window attention",
      {.grid = grid_of(order), .block = dim3(cuda::device::kMmaThreads), .shared = cuda::device::kMmaForwardShared},
      cuda::device::attention_mma_forward, shape, order, x);
}

// How many slices, in whole groups, keep the gradients of their scores at once; 0 if one group does not fit.
struct KeptSlices {
  static constexpr Index kMostBytes = Index{512} << 20;
  Index blocks, span, slice_blocks, together;

  // At most `megabytes`, or one group (kKeptMegabytes).
  KeptSlices(const AttentionShape& shape, Index slices, Index megabytes)
      : blocks((Index{shape.queries} + 15) / 16),
        span(std::min(blocks, (Index{shape.window} + 14) / 16 + 1)),
        slice_blocks(ScoreBlocks::before(blocks, span)) {
    const Index groups = slices / shape.group, group_bytes = slice_blocks * ScoreBlocks::kBytes * shape.group;
    if (group_bytes > kMostBytes) {
      together = 0;
      return;
    }
    const Index fitting = std::max<Index>(1, (megabytes << 20) / group_bytes);
    const Index rounds = (groups + fitting - 1) / fitting;
    together = (groups + rounds - 1) / rounds * shape.group;
  }
};

void attend_mma_backward(cuda::Stream& stream, const AttentionShape& shape, Index slices,
                         const BackwardOperands<BFloat16>& x, const KeptSlices& keeping, Index megabytes) {
  const auto order = [&](Index first, Index count, Index bytes) {
    auto blocks = order_of(count, shape.queries, cuda::device::kMmaRows, bytes, megabytes);
    blocks.first = static_cast<int>(first);
    return blocks;
  };
  const auto launch = [&](const char* name, const BlockOrder& blocks, int shared, auto kernel, const auto&... more) {
    cuda::launch(
        stream, name,
        {.grid = grid_of(blocks), .block = dim3(cuda::device::kMmaThreads), .shared = static_cast<std::size_t>(shared)},
        kernel, shape, blocks, x, more...);
  };
  const auto keys = [&](Index first, Index count) {
    return order(first / shape.group, count / shape.group, slice_bytes<BFloat16>(shape) * shape.group);
  };
  const auto queries = [&](Index first, Index count) {
    return order(first, count, slice_bytes<BFloat16>(shape) / shape.group);
  };
  constexpr int kShared = cuda::device::kMmaBackwardShared;
  if (keeping.together == 0) {
    launch("window attention backward, keys", keys(0, slices), kShared, cuda::device::attention_mma_keys<false>,
           ScoreBlocks{});
    launch("window attention backward, queries", queries(0, slices), kShared, cuda::device::attention_mma_queries);
    return;
  }
  cuda::Scratch scratch(stream);
  ScoreBlocks kept{.data = scratch.take<uint4>(keeping.together * keeping.slice_blocks * 32),
                   .blocks = static_cast<int>(keeping.blocks),
                   .span = static_cast<int>(keeping.span),
                   .first_slice = 0};
  for (Index first = 0; first < slices; first += keeping.together) {
    const Index count = std::min(keeping.together, slices - first);
    kept.first_slice = static_cast<int>(first);
    launch("window attention backward, keys", keys(first, count), kShared, cuda::device::attention_mma_keys<true>,
           kept);
    launch("window attention backward, queries", queries(first, count), 0, cuda::device::attention_mma_queries_kept,
           kept);
  }
}

}  // namespace

template <class T>
void run(cuda::Stream& stream, const WindowAttentionForward<T>& op) {
  cuda::check_head_dim(op.head_dim);
  const Index heads = op.q.cols / op.head_dim, slices = op.sequences * heads;
  if (slices * op.queries == 0) return;
  const auto shape = shape_of(heads, op.k.cols / op.head_dim, op.head_dim, op.queries, op.past, op.window);
  const ForwardOperands<T> x{op.q, op.k, op.v, op.out, op.log_sum};
  const bool aligned = cuda::all_aligned(op.q, op.k, op.v, op.out);
  if (op.queries <= kFewQueries) return attend_rows(stream, shape, slices, x, aligned);
  const bool mma = on_tensor_cores<T>(op.head_dim, aligned);
  const cuda::Written results[] = {cuda::written(op.out), cuda::written(op.log_sum)};
  launch_in_order(stream, mma ? "attention" : "attention tiles", shape, slices, sizeof(T),
                  slices * slice_bytes<T>(shape) / shape.group, results, [&](Index megabytes) {
                    if constexpr (std::is_same_v<T, BFloat16>) {
                      if (mma) return attend_mma(stream, shape, slices, x, megabytes);
                    }
                    attend_tiles(stream, shape, slices, x, megabytes);
                  });
}

template <class T>
void run(cuda::Stream& stream, const WindowAttentionBackward<T>& op) {
  cuda::check_head_dim(op.head_dim);
  const Index heads = op.q.cols / op.head_dim, slices = op.sequences * heads, rows = op.sequences * op.length;
  if (slices * op.length == 0) return;
  const auto shape = shape_of(heads, op.k.cols / op.head_dim, op.head_dim, op.length, 0, op.window);
  const bool aligned = cuda::all_aligned(op.q, op.k, op.v, op.out, op.d_out, op.d_q, op.d_k, op.d_v);
  const bool mma = on_tensor_cores<T>(op.head_dim, aligned);

  cuda::Scratch scratch(stream);
  float* log_sum = scratch.take<float>(rows * heads);
  float* delta = scratch.take<float>(rows * heads);
  cuda::with_lanes<T>(op.head_dim, aligned, [&]<int kLanes, bool kAligned>() {
    cuda::launch(stream, "window attention backward, delta",
                 {.grid = dim3(cuda::blocks_for(rows * heads * kLanes, kDeltaThreads)), .block = dim3(kDeltaThreads)},
                 cuda::device::attention_delta<T, kLanes, kAligned>, shape, rows, op.out, op.d_out, op.log_sum,
                 mma ? cuda::device::kLog2E : 1.0f, log_sum, delta);
  });
  const BackwardOperands<T> x{.q = op.q,
                              .k = op.k,
                              .v = op.v,
                              .d_out = op.d_out,
                              .log_sum = log_sum,
                              .delta = delta,
                              .d_q = op.d_q,
                              .d_k = op.d_k,
                              .d_v = op.d_v};
  const cuda::Written results[] = {cuda::written(op.d_q), cuda::written(op.d_k), cuda::written(op.d_v)};
  const Index bytes = slices * slice_bytes<T>(shape);
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (mma) {
      const auto keeping = [&](Index megabytes) { return KeptSlices(shape, slices, megabytes); };
      const Index sizes[] = {shape.group, cuda::size_class(slices), cuda::size_class(shape.queries),
                             cuda::size_class(shape.window)};
      Index kept = cuda::kKeptMegabytes[0];
      if (keeping(cuda::kKeptMegabytes[1]).together != keeping(kept).together)
        kept =
            cuda::tuned_parameter(stream, "attention kept", sizes, cuda::kKeptMegabytes, results, [&](Index candidate) {
              attend_mma_backward(stream, shape, slices, x, keeping(candidate), cuda::kCacheMegabytes[0]);
            });
      return launch_in_order(
          stream, "attention backward", shape, slices, sizeof(T), bytes, results,
          [&](Index megabytes) { attend_mma_backward(stream, shape, slices, x, keeping(kept), megabytes); });
    }
  }
  launch_in_order(stream, "attention tiles backward", shape, slices, sizeof(T), bytes, results,
                  [&](Index megabytes) { attend_tiles_backward(stream, shape, slices, x, megabytes); });
}

template void run(cuda::Stream&, const WindowAttentionForward<BFloat16>&);
template void run(cuda::Stream&, const WindowAttentionForward<float>&);
template void run(cuda::Stream&, const WindowAttentionBackward<BFloat16>&);
template void run(cuda::Stream&, const WindowAttentionBackward<float>&);

}  // namespace essh
