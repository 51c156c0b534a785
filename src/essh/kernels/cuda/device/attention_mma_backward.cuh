#pragma once
#include "essh/kernels/cuda/device/attention_mma.cuh"

// Backward of the attention of attention_mma.cuh. With the weights P and the gradients of the scores
//   dS = P (d_out v^T - delta)
// the first pass holds keys and loops over the queries of the heads that read them, all operands transposed, for
//   d_k = scale dS^T q,  d_v = P^T d_out,
// and the second holds queries and loops over keys, for
//   d_q = scale dS k.
// The second pass reads the dS kept by the first, or recomputes it if none was kept. No block adds to another block's
// sums, so the result is deterministic. log_sum is in units of log 2.
namespace essh::cuda::device {

// dS in bf16: blocks of 16 queries x 16 keys with at least one visible pair, the key blocks of a query block
// contiguous. A block is stored as the A operand of its transpose, 16 bytes per lane of a warp.
struct ScoreBlocks {
  static constexpr int kBytes = 16 * 16 * 2;

  uint4* data;
  int blocks;       // per sequence
  int span;         // maximum number of key blocks seen by a query block
  int first_slice;  // first slice kept

  // Number of blocks stored before query block `block`.
  template <class Integer>
  __host__ __device__ static constexpr Integer before(Integer block, Integer span) {
    return block <= span ? block * (block + 1) / 2 : span * (span + 1) / 2 + (block - span) * span;
  }
  __device__ bool has(int query_block, int key_block) const {
    return query_block < blocks && key_block <= query_block && key_block > query_block - span;
  }
  // This lane's 16 bytes; the next key block is kBytes further on.
  __device__ uint4* at(int slice, int query_block, int key_block, int lane) const {
    const int index = before(query_block, span) + key_block - max(0, query_block - span + 1);
    return data + (static_cast<std::int64_t>(slice - first_slice) * before(blocks, span) + index) * 32 + lane;
  }
};

// Two resident tiles of rows, two stages of two tiles, and per stage the queries' log_sum and delta.
inline constexpr int kMmaBackwardShared = 2 * kMmaRowsBytes + 4 * kMmaTileBytes + 4 * kMmaTile * int{sizeof(float)};

// sums = 32 rows of one tile times 16 kSteps rows of another.
template <int kSteps>
__device__ __forceinline__ void set_row_products(float (&sums)[2][2 * kSteps][4], const TileReader& a,
                                                 std::uint32_t a_bytes, const TileReader& b, int first_step,
                                                 std::uint32_t b_bytes) {
#pragma unroll
  for (int i = 0; i < 2 * 2 * kSteps * 4; ++i) sums[i / (8 * kSteps)][i / 4 % (2 * kSteps)][i % 4] = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Word left[2][4];
    load_blocks(left[0], a.at(0, k, a_bytes));
    load_blocks(left[1], a.at(1, k, a_bytes));
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      Word right[4];
      load_blocks(right, b.at(first_step + n, k, b_bytes));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma(sums[m][2 * n], left[m], right[0], right[1]);
        mma(sums[m][2 * n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// sums += weights (rounded to bf16) times the rows of a tile. Calls rounded(m, j, words) for each 16 x 16 block of
// weights.
template <int kSteps, class Rounded>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[2][8][4], const float (&weights)[2][2 * kSteps][4],
                                                  const TileReader& rows, int first_step, std::uint32_t bytes,
                                                  const Rounded& rounded) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    Word left[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      as_operand(left[m], weights[m][2 * j], weights[m][2 * j + 1]);
      rounded(m, j, left[m]);
    }
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      Word right[4];
      load_blocks_transposed(right, rows.at(first_step + j, d, bytes));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma(sums[m][2 * d], left[m], right[0], right[1]);
        mma(sums[m][2 * d + 1], left[m], right[2], right[3]);
      }
    }
  }
}
template <int kSteps>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[2][8][4], const float (&weights)[2][2 * kSteps][4],
                                                  const TileReader& rows, int first_step, std::uint32_t bytes) {
  add_weighted_rows<kSteps>(sums, weights, rows, first_step, bytes, [](int, int, const Word(&)[4]) {});
}

// Writes the warp's 32 rows of sums, times `factor`, through the warp's own rows of a tile.
__device__ __forceinline__ void write_rows(const float (&sums)[2][8][4], float factor, unsigned char* tile, int warp,
                                           int lane, BFloat16* to, std::int64_t stride, int rows) {
#pragma unroll
  for (int m = 0; m < 2; ++m) store_sums(tile, warp * kMmaWarpRows + m * 16, lane, sums[m], factor, factor);
  __syncwarp();
  store_rows(to, stride, tile, warp * kMmaWarpRows, rows, lane);
}

// The pass for d_k and d_v; its slices are kv heads. kKeep: stores dS in `kept`.
template <bool kKeep>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_keys(AttentionShape shape, BlockOrder order, BackwardOperands<BFloat16> x, ScoreBlocks kept) {
  // Queries of a tile processed at once, 16 kSteps: as many as leave registers for the sums.
  constexpr int kSteps = 2, kCount = 16 * kSteps;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int kv_heads = shape.kv_heads(), sequence = slice / kv_heads, kv_head = slice % kv_heads;
  const int length = shape.queries, first = rank * kMmaRows, rows = min(kMmaRows, length - first);
  const std::int64_t base = static_cast<std::int64_t>(sequence) * length;
  const int end = min(length, first + rows - 1 + shape.window);
  const int low = first + warp * kMmaWarpRows;
  const bool idle = warp * kMmaWarpRows >= rows;

  const std::uint32_t held = shared_address(shared), stages = held + 2 * kMmaRowsBytes;
  const float* statistics = reinterpret_cast<const float*>(shared + 2 * kMmaRowsBytes + 4 * kMmaTileBytes);
  TileLoader<kMmaThreads>(x.k.row(base + first) + kv_head * kTileColumns, x.k.stride).load<kMmaRows>(held, rows);
  TileLoader<kMmaThreads>(x.v.row(base + first) + kv_head * kTileColumns, x.v.stride)
      .load<kMmaRows>(held + kMmaRowsBytes, rows);

  const auto held_rows = TileReader::rows(held + warp * kMmaWarpRows * kTileRowBytes, lane);
  const auto passing_columns = TileReader::columns(stages, lane), passing_rows = TileReader::rows(stages, lane);
  const float scale = shape.scale * kLog2E;
  float d_k[2][8][4] = {}, d_v[2][8][4] = {};
  for (int member = 0; member < shape.group; ++member) {
    const int head = kv_head * shape.group + member, query_slice = sequence * shape.heads + head;
    const float* log_sum = x.log_sum + static_cast<std::int64_t>(query_slice) * length;
    const float* delta = x.delta + static_cast<std::int64_t>(query_slice) * length;
    TileLoader<kMmaThreads> q_loader(x.q.row(base + first) + head * kTileColumns, x.q.stride);
    TileLoader<kMmaThreads> d_out_loader(x.d_out.row(base + first) + head * kTileColumns, x.d_out.stride);
    const auto load_stage = [&](int at, std::uint32_t stage) {
      const int count = end - at;
      q_loader.load<kMmaTile>(stages + stage * 2 * kMmaTileBytes, count);
      d_out_loader.load<kMmaTile>(stages + stage * 2 * kMmaTileBytes + kMmaTileBytes, count);
      // Rows beyond the end are zero and contribute zero, whatever these values are.
      const int i = static_cast<int>(threadIdx.x) % kMmaTile;
      const float* from = threadIdx.x < kMmaTile ? log_sum : delta;
      copy_async_float(shared_address(statistics + stage * 2 * kMmaTile + threadIdx.x), from + at + i, i < count);
      end_copies();
    };
    // The stages are free once all warps have finished the previous head.
    if (member > 0) __syncthreads();
    load_stage(first, 0);

    std::uint32_t stage = 0;
    for (int tile = first; tile < end; tile += kMmaTile, stage ^= 1) {
      wait_for_copies();
      __syncthreads();
      if (tile + kMmaTile < end) load_stage(tile + kMmaTile, stage ^ 1);
      const std::uint32_t bytes = stage * 2 * kMmaTileBytes;
#pragma unroll 1
      for (int step = 0; step < kMmaTile / 16; step += kSteps) {
        const int at = tile + step * 16;
        if (idle || !shape.any_sees(at, at + kCount - 1, low, kMmaWarpRows)) continue;

        float weights[2][2 * kSteps][4], d_scores[2][2 * kSteps][4];
        set_row_products<kSteps>(weights, held_rows, 0, passing_columns, step, bytes);
        if (!shape.all_see(at, at + kCount - 1, low, kMmaWarpRows)) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                const int key = low + m * 16 + lane / 4 + e / 2 * 8, query = at + n * 8 + lane % 4 * 2 + e % 2;
                if (!shape.sees(query, key)) weights[m][n][e] = -INFINITY;
              }
            }
          }
        }
        // No branches from here on, so that products and exponentials can interleave.
        set_row_products<kSteps>(d_scores, held_rows, kMmaRowsBytes, passing_columns, step, bytes + kMmaTileBytes);
        const float* tile_log_sum = statistics + stage * 2 * kMmaTile + step * 16 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
              weights[m][n][e] = exp2_approximate(fmaf(weights[m][n][e], scale, -tile_log_sum[n * 8 + e % 2]));
          }
        }
        add_weighted_rows<kSteps>(d_v, weights, passing_rows, step, bytes + kMmaTileBytes);
        const float* tile_delta = tile_log_sum + kMmaTile;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
              d_scores[m][n][e] = weights[m][n][e] * (d_scores[m][n][e] - tile_delta[n * 8 + e % 2]);
          }
        }
        add_weighted_rows<kSteps>(d_k, d_scores, passing_rows, step, bytes, [&](int m, int j, const Word(&words)[4]) {
          if (!kKeep) return;
          const int query_block = at / 16 + j, key_block = low / 16 + m;
          if (kept.has(query_block, key_block))
            __stcs(kept.at(query_slice, query_block, key_block, lane), uint4{words[0], words[1], words[2], words[3]});
        });
      }
    }
  }
  if (idle) return;
  __syncwarp();
  const std::int64_t column = kv_head * kTileColumns;
  write_rows(d_k, shape.scale, shared, warp, lane, x.d_k.row(base + first) + column, x.d_k.stride, rows);
  write_rows(d_v, 1, shared + kMmaRowsBytes, warp, lane, x.d_v.row(base + first) + column, x.d_v.stride, rows);
}

}  // namespace essh::cuda::device
