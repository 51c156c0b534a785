#pragma once
#include "essh/kernels/cuda/device/attention_mma.cuh"

// Gradients of the attention of attention_mma.cuh. Both passes recompute the weights P and the gradients of the scores
//   dS = P (d_out v^T - delta)
// and nobody adds to another's sums, so the bits never change. One pass holds queries and passes over keys, for
//   d_q = scale dS k,
// the other holds keys and passes over the queries of the heads that read them, with everything transposed, for
//   d_k = scale dS^T q,  d_v = P^T d_out.
namespace essh::cuda::device {

// Two tiles of rows that stay, two stages of two tiles, and of each stage the queries' log_sum and delta.
inline constexpr int kMmaBackwardShared = 2 * kMmaRowsBytes + 4 * kMmaTileBytes + 4 * kMmaTile * int{sizeof(float)};

// sums = 32 rows of one tile times rows of another, kSteps times 16 of them.
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

// sums += weights, rounded, times the rows of a tile.
template <int kSteps>
__device__ __forceinline__ void add_weighted_rows(float (&sums)[2][8][4], const float (&weights)[2][2 * kSteps][4],
                                                  const TileReader& rows, int first_step, std::uint32_t bytes) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    Word left[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) as_operand(left[m], weights[m][2 * j], weights[m][2 * j + 1]);
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

// kKeys: the pass that holds keys, whose slices are kv heads. log_sum comes in units of log 2.
template <bool kKeys>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_backward(AttentionShape shape, BlockOrder order, BackwardOperands<BFloat16> x) {
  // Of a tile, so many rows at a time as leave room for the sums in registers.
  constexpr int kSteps = kKeys ? 2 : 4;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int slices = kKeys ? shape.kv_heads() : shape.heads, length = shape.queries;
  const int sequence = slice / slices, held_column = slice % slices * kTileColumns;
  const std::int64_t base = static_cast<std::int64_t>(sequence) * length;
  const int first = (kKeys ? rank : order.blocks - 1 - rank) * kMmaRows, rows = min(kMmaRows, length - first);
  const int begin = kKeys ? first : max(0, first - shape.window + 1) / kMmaTile * kMmaTile;
  const int end = kKeys ? min(length, first + rows - 1 + shape.window) : first + rows;
  const int low = first + warp * kMmaWarpRows, high = low + kMmaWarpRows - 1;
  const bool idle = warp * kMmaWarpRows >= rows;

  // Held rows: queries and d_out, or keys and values. Passing rows: the other two.
  const auto held = kKeys ? x.k : x.q, held_other = kKeys ? x.v : x.d_out;
  const auto passing = kKeys ? x.q : x.k, passing_other = kKeys ? x.d_out : x.v;
  const std::uint32_t held_tile = shared_address(shared), stages = held_tile + 2 * kMmaRowsBytes;
  const float* statistics = reinterpret_cast<const float*>(shared + 2 * kMmaRowsBytes + 4 * kMmaTileBytes);
  TileLoader<kMmaThreads>(held.row(base + first) + held_column, held.stride).template load<kMmaRows>(held_tile, rows);
  TileLoader<kMmaThreads>(held_other.row(base + first) + held_column, held_other.stride)
      .template load<kMmaRows>(held_tile + kMmaRowsBytes, rows);

  const auto held_rows = TileReader::rows(held_tile + warp * kMmaWarpRows * kTileRowBytes, lane);
  const auto passing_columns = TileReader::columns(stages, lane), passing_rows = TileReader::rows(stages, lane);
  const float scale = shape.scale * kLog2E;
  float sums[2][8][4] = {}, other_sums[2][8][4] = {};
  const int heads = kKeys ? shape.group : 1;
  for (int member = 0; member < heads; ++member) {
    const int head = kKeys ? slice % slices * shape.group + member : slice % slices;
    const int column = (kKeys ? head : head / shape.group) * kTileColumns;
    const float* log_sum = x.log_sum + (static_cast<std::int64_t>(sequence) * shape.heads + head) * length;
    const float* delta = x.delta + (static_cast<std::int64_t>(sequence) * shape.heads + head) * length;
    TileLoader<kMmaThreads> loader(passing.row(base + begin) + column, passing.stride);
    TileLoader<kMmaThreads> other_loader(passing_other.row(base + begin) + column, passing_other.stride);
    const auto load_stage = [&](int at, std::uint32_t stage) {
      const int count = end - at;
      loader.template load<kMmaTile>(stages + stage * 2 * kMmaTileBytes, count);
      other_loader.template load<kMmaTile>(stages + stage * 2 * kMmaTileBytes + kMmaTileBytes, count);
      if (kKeys) {
        // Rows beyond the end are zero, and so is what they add, whatever these say.
        const int i = static_cast<int>(threadIdx.x) % kMmaTile;
        const float* from = threadIdx.x < kMmaTile ? log_sum : delta;
        copy_async_float(shared_address(statistics + stage * 2 * kMmaTile + threadIdx.x), from + at + i, i < count);
      }
      end_copies();
    };
    // Stages are free once all warps have left the head before.
    if (member > 0) __syncthreads();
    load_stage(begin, 0);

    float row_log_sum[2][2] = {}, row_delta[2][2] = {};
    if (!kKeys) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = low + i / 2 * 16 + i % 2 * 8 + lane / 4;
        if (query < length) {
          row_log_sum[i / 2][i % 2] = log_sum[query];
          row_delta[i / 2][i % 2] = delta[query];
        }
      }
    }

    std::uint32_t stage = 0;
    for (int tile = begin; tile < end; tile += kMmaTile, stage ^= 1) {
      wait_for_copies();
      __syncthreads();
      if (tile + kMmaTile < end) load_stage(tile + kMmaTile, stage ^ 1);
      const std::uint32_t bytes = stage * 2 * kMmaTileBytes;
#pragma unroll 1
      for (int step = 0; step < kMmaTile / 16; step += kSteps) {
        constexpr int kCount = kSteps * 16;
        const int at = tile + step * 16;
        const int query = kKeys ? at : low, last_query = kKeys ? at + kCount - 1 : high;
        const int key = kKeys ? low : at, keys = kKeys ? kMmaWarpRows : kCount;
        if (idle || !shape.any_sees(query, last_query, key, keys)) continue;

        float weights[2][2 * kSteps][4], d_scores[2][2 * kSteps][4];
        set_row_products<kSteps>(weights, held_rows, 0, passing_columns, step, bytes);
        const float* tile_log_sum = statistics + stage * 2 * kMmaTile + step * 16 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float log_sum_here = kKeys ? tile_log_sum[n * 8 + e % 2] : row_log_sum[m][e / 2];
              weights[m][n][e] = exp2_approximate(fmaf(weights[m][n][e], scale, -log_sum_here));
            }
          }
        }
        if (!shape.all_see(query, last_query, key, keys)) {
#pragma unroll
          for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                const int row = low + m * 16 + lane / 4 + e / 2 * 8, passed = at + n * 8 + lane % 4 * 2 + e % 2;
                if (!(kKeys ? shape.sees(passed, row) : shape.sees(row, passed))) weights[m][n][e] = 0;
              }
            }
          }
        }
        if (kKeys) add_weighted_rows<kSteps>(other_sums, weights, passing_rows, step, bytes + kMmaTileBytes);
        set_row_products<kSteps>(d_scores, held_rows, kMmaRowsBytes, passing_columns, step, bytes + kMmaTileBytes);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int n = 0; n < 2 * kSteps; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const float delta_here = kKeys ? tile_log_sum[kMmaTile + n * 8 + e % 2] : row_delta[m][e / 2];
              d_scores[m][n][e] = weights[m][n][e] * (d_scores[m][n][e] - delta_here);
            }
          }
        }
        add_weighted_rows<kSteps>(sums, d_scores, passing_rows, step, bytes);
      }
    }
  }
  if (idle) return;

  // Out through the warp's own rows of the held tiles, which no other warp reads, once all its lanes have read them.
  __syncwarp();
  const auto write = [&](const float(&values)[2][8][4], float factor, unsigned char* through, Matrix<BFloat16> to) {
#pragma unroll
    for (int m = 0; m < 2; ++m) store_sums(through, warp * kMmaWarpRows + m * 16, lane, values[m], factor, factor);
    __syncwarp();
    store_rows(to.row(base + first) + held_column, to.stride, through, warp * kMmaWarpRows, rows, lane);
  };
  write(sums, shape.scale, shared, kKeys ? x.d_k : x.d_q);
  if (kKeys) write(other_sums, 1, shared + kMmaRowsBytes, x.d_v);
}

}  // namespace essh::cuda::device
