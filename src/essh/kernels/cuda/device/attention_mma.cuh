#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/bf16_tile.cuh"

// Attention of 64-dimensional heads in bf16 on tensor cores. A block of four warps holds 128 rows, each warp 32 of
// them, and passes over tiles of 64 rows of the other side, the next one on its way while one is worked on.
namespace essh::cuda::device {

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaRows = 128;
inline constexpr int kMmaTile = 64;
inline constexpr int kMmaWarpRows = 32;
inline constexpr int kMmaTileBytes = kMmaTile * kTileRowBytes;
inline constexpr int kMmaRowsBytes = kMmaRows * kTileRowBytes;
// The rows of the block, then two stages of two tiles.
inline constexpr int kMmaForwardShared = kMmaRowsBytes + 4 * kMmaTileBytes;
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// The softmax of 32 rows of one warp as it goes along: a lane's rows are 16 m + g + 8 h.
struct RunningSoftmax {
  float largest[2][2], sum[2][2];  // the sum is the lane's own part

  __device__ RunningSoftmax() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      largest[i / 2][i % 2] = -INFINITY;
      sum[i / 2][i % 2] = 0;
    }
  }

  // Scores become weights relative to the new largest; `out` is brought to it.
  template <int kTiles>
  __device__ __forceinline__ void add(float (&scores)[2][kTiles][4], float (&out)[2][8][4], float scale) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = largest[m][h];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) top = fmaxf(top, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        // A row that has seen nothing yet keeps weights of zero.
        const float base = top == -INFINITY ? 0.0f : top * scale;
        const float fade = exp2_approximate(largest[m][h] * scale - base);
        largest[m][h] = top;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            scores[m][n][e] = exp2_approximate(fmaf(scores[m][n][e], scale, -base));
            total += scores[m][n][e];
          }
        }
        sum[m][h] = sum[m][h] * fade + total;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          out[m][n][2 * h] *= fade;
          out[m][n][2 * h + 1] *= fade;
        }
      }
    }
  }

  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& total = sum[i / 2][i % 2];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
    }
  }
};

__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_mma_forward(AttentionShape shape, BlockOrder order, ForwardOperands<BFloat16> x) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int head = slice % shape.heads, sequence = slice / shape.heads;
  const int column = head * kTileColumns, kv_column = head / shape.group * kTileColumns;
  const int first = (order.blocks - 1 - rank) * kMmaRows, rows = min(kMmaRows, shape.queries - first);
  const std::int64_t query_row = static_cast<std::int64_t>(sequence) * shape.queries + first;
  const std::int64_t key_row = static_cast<std::int64_t>(sequence) * shape.keys();
  const int begin = max(0, shape.past + first - shape.window + 1) / kMmaTile * kMmaTile,
            end = shape.past + first + rows;
  // Positions of the warp's rows. Rows beyond the last query are zero and are not written.
  const int low = shape.past + first + warp * kMmaWarpRows, high = low + kMmaWarpRows - 1;
  const bool idle = warp * kMmaWarpRows >= rows;

  const std::uint32_t q_tile = shared_address(shared), stages = q_tile + kMmaRowsBytes;
  TileLoader<kMmaThreads> k_loader(x.k.row(key_row + begin) + kv_column, x.k.stride);
  TileLoader<kMmaThreads> v_loader(x.v.row(key_row + begin) + kv_column, x.v.stride);
  const auto load_stage = [&](int key, std::uint32_t stage) {
    k_loader.load<kMmaTile>(stages + stage, end - key);
    v_loader.load<kMmaTile>(stages + stage + kMmaTileBytes, end - key);
    end_copies();
  };
  TileLoader<kMmaThreads>(x.q.row(query_row) + column, x.q.stride).load<kMmaRows>(q_tile, rows);
  load_stage(begin, 0);

  const auto q_reader = TileReader::rows(q_tile + warp * kMmaWarpRows * kTileRowBytes, lane);
  const auto k_reader = TileReader::columns(stages, lane), v_reader = TileReader::rows(stages + kMmaTileBytes, lane);
  Word q[2][4][4];
  wait_for_copies();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int k = 0; k < 4; ++k) load_blocks(q[m][k], q_reader.at(m, k));
  }
  float out[2][8][4] = {};
  RunningSoftmax softmax;
  const float scale = shape.scale * kLog2E;
  std::uint32_t stage = 0;
  for (int key = begin; key < end; key += kMmaTile, stage ^= 2 * kMmaTileBytes) {
    wait_for_copies();
    __syncthreads();
    if (key + kMmaTile < end) load_stage(key + kMmaTile, stage ^ 2 * kMmaTileBytes);
    if (idle || !shape.any_sees(low, high, key, kMmaTile)) continue;

    float scores[2][8][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        Word b[4];
        load_blocks(b, k_reader.at(n, k, stage));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma(scores[m][2 * n], q[m][k], b[0], b[1]);
          mma(scores[m][2 * n + 1], q[m][k], b[2], b[3]);
        }
      }
    }
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
    softmax.add(scores, out, scale);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Word weights[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) as_operand(weights[m], scores[m][2 * j], scores[m][2 * j + 1]);
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        Word b[4];
        load_blocks_transposed(b, v_reader.at(j, d, stage));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma(out[m][2 * d], weights[m], b[0], b[1]);
          mma(out[m][2 * d + 1], weights[m], b[2], b[3]);
        }
      }
    }
  }
  if (idle) return;

  // Out through the warp's own rows of the queries' tile, which nobody else reads.
  softmax.finish();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int row = warp * kMmaWarpRows + m * 16;
    store_sums(shared, row, lane, out[m], 1 / softmax.sum[m][0], 1 / softmax.sum[m][1]);
    if (x.log_sum.empty() || lane % 4 != 0) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + lane / 4 + h * 8;
      if (r < rows) x.log_sum(query_row + r, head) = softmax.largest[m][h] * shape.scale + logf(softmax.sum[m][h]);
    }
  }
  __syncwarp();
  store_rows(x.out.row(query_row) + column, x.out.stride, shared, warp * kMmaWarpRows, rows, lane);
}

}  // namespace essh::cuda::device
