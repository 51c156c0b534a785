#pragma once
#include "essh/kernels/cuda/device/attention_mma_backward.cuh"

// The pass for d_q of attention_mma_backward.cuh.
namespace essh::cuda::device {

// The A operand of 16 queries x 16 keys from a kept block.
__device__ __forceinline__ void as_query_rows(Word (&a)[4], const uint4& block) {
  a[0] = transpose_block(block.x);
  a[1] = transpose_block(block.z);
  a[2] = transpose_block(block.y);
  a[3] = transpose_block(block.w);
}

// Uses the dS kept by attention_mma_keys: reads it once, one tile ahead, and multiplies.
__global__ void __launch_bounds__(kMmaThreads, 3)
    attention_mma_queries_kept(AttentionShape shape, BlockOrder order, BackwardOperands<BFloat16> x, ScoreBlocks kept) {
  // Two stages of keys; at the end the block's rows.
  __shared__ __align__(128) unsigned char shared[kMmaRowsBytes];
  static_assert(kMmaRowsBytes == 2 * kMmaTileBytes);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int head = slice % shape.heads, sequence = slice / shape.heads, length = shape.queries;
  const int first = (order.blocks - 1 - rank) * kMmaRows, rows = min(kMmaRows, length - first);
  const std::int64_t base = static_cast<std::int64_t>(sequence) * length;
  const int begin = max(0, first - shape.window + 1) / kMmaTile * kMmaTile, end = first + rows;
  const int low = first + warp * kMmaWarpRows, high = low + kMmaWarpRows - 1;

  const std::uint32_t stages = shared_address(shared);
  TileLoader<kMmaThreads> loader(x.k.row(base + begin) + head / shape.group * kTileColumns, x.k.stride);
  const auto load_stage = [&](int key, std::uint32_t stage) {
    loader.load<kMmaTile>(stages + stage * kMmaTileBytes, end - key);
    end_copies();
  };
  uint4 scores[2][4];
  const auto load_scores = [&](int key) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int query_block = low / 16 + m, key_block = key / 16 + j;
        scores[m][j] = uint4{0, 0, 0, 0};
        if (kept.has(query_block, key_block)) scores[m][j] = __ldcs(kept.at(slice, query_block, key_block, lane));
      }
    }
  };
  load_stage(begin, 0);
  load_scores(begin);

  const auto key_rows = TileReader::rows(stages, lane);
  float sums[2][8][4] = {};
  std::uint32_t stage = 0;
  for (int key = begin; key < end; key += kMmaTile, stage ^= 1) {
    wait_for_copies();
    __syncthreads();
    Word left[2][4][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) as_query_rows(left[i / 4][i % 4], scores[i / 4][i % 4]);
    if (key + kMmaTile < end) {
      load_stage(key + kMmaTile, stage ^ 1);
      load_scores(key + kMmaTile);
    }
    if (!shape.any_sees(low, high, key, kMmaTile)) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        Word right[4];
        load_blocks_transposed(right, key_rows.at(j, d, stage * kMmaTileBytes));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma(sums[m][2 * d], left[m][j], right[0], right[1]);
          mma(sums[m][2 * d + 1], left[m][j], right[2], right[3]);
        }
      }
    }
  }
  __syncthreads();
  if (warp * kMmaWarpRows >= rows) return;
  write_rows(sums, shape.scale, shared, warp, lane, x.d_q.row(base + first) + head * kTileColumns, x.d_q.stride, rows);
}

// Recomputes dS.
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_queries(AttentionShape shape, BlockOrder order, BackwardOperands<BFloat16> x) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int head = slice % shape.heads, sequence = slice / shape.heads, length = shape.queries;
  const int column = head * kTileColumns, kv_column = head / shape.group * kTileColumns;
  const int first = (order.blocks - 1 - rank) * kMmaRows, rows = min(kMmaRows, length - first);
  const std::int64_t base = static_cast<std::int64_t>(sequence) * length;
  const int begin = max(0, first - shape.window + 1) / kMmaTile * kMmaTile, end = first + rows;
  const int low = first + warp * kMmaWarpRows, high = low + kMmaWarpRows - 1;
  const bool idle = warp * kMmaWarpRows >= rows;

  const std::uint32_t held = shared_address(shared), stages = held + 2 * kMmaRowsBytes;
  TileLoader<kMmaThreads>(x.q.row(base + first) + column, x.q.stride).load<kMmaRows>(held, rows);
  TileLoader<kMmaThreads>(x.d_out.row(base + first) + column, x.d_out.stride)
      .load<kMmaRows>(held + kMmaRowsBytes, rows);
  TileLoader<kMmaThreads> k_loader(x.k.row(base + begin) + kv_column, x.k.stride);
  TileLoader<kMmaThreads> v_loader(x.v.row(base + begin) + kv_column, x.v.stride);
  const auto load_stage = [&](int key, std::uint32_t stage) {
    k_loader.load<kMmaTile>(stages + stage, end - key);
    v_loader.load<kMmaTile>(stages + stage + kMmaTileBytes, end - key);
    end_copies();
  };
  load_stage(begin, 0);

  float log_sum[2][2] = {}, delta[2][2] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int query = low + i / 2 * 16 + i % 2 * 8 + lane / 4;
    if (query < length) {
      log_sum[i / 2][i % 2] = x.log_sum[static_cast<std::int64_t>(slice) * length + query];
      delta[i / 2][i % 2] = x.delta[static_cast<std::int64_t>(slice) * length + query];
    }
  }
  const auto held_rows = TileReader::rows(held + warp * kMmaWarpRows * kTileRowBytes, lane);
  const auto passing_columns = TileReader::columns(stages, lane), passing_rows = TileReader::rows(stages, lane);
  const float scale = shape.scale * kLog2E;
  float sums[2][8][4] = {};
  std::uint32_t stage = 0;
  for (int key = begin; key < end; key += kMmaTile, stage ^= 2 * kMmaTileBytes) {
    wait_for_copies();
    __syncthreads();
    if (key + kMmaTile < end) load_stage(key + kMmaTile, stage ^ 2 * kMmaTileBytes);
    if (idle || !shape.any_sees(low, high, key, kMmaTile)) continue;

    float scores[2][8][4], d_scores[2][8][4];
    set_row_products<4>(scores, held_rows, 0, passing_columns, 0, stage);
    if (!shape.all_see(low, high, key, kMmaTile)) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int position = low + m * 16 + lane / 4 + e / 2 * 8, at = key + n * 8 + lane % 4 * 2 + e % 2;
            if (!shape.sees(position, at)) scores[m][n][e] = -INFINITY;
          }
        }
      }
    }
    set_row_products<4>(d_scores, held_rows, kMmaRowsBytes, passing_columns, 0, stage + kMmaTileBytes);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float weight = exp2_approximate(fmaf(scores[m][n][e], scale, -log_sum[m][e / 2]));
          d_scores[m][n][e] = weight * (d_scores[m][n][e] - delta[m][e / 2]);
        }
      }
    }
    add_weighted_rows<4>(sums, d_scores, passing_rows, 0, stage);
  }
  if (idle) return;
  __syncwarp();
  write_rows(sums, shape.scale, shared, warp, lane, x.d_q.row(base + first) + column, x.d_q.stride, rows);
}

}  // namespace essh::cuda::device
