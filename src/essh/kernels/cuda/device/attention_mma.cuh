#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/bf16_tile.cuh"

// Attention of 64-dimensional heads in bf16 on tensor cores. A block of four warps holds 128 rows, 32 per warp, and
// loops over tiles of 64 rows of the other side; the next tile is loaded while one is being computed.
namespace essh::cuda::device {

inline constexpr int kMmaThreads = 128;
inline constexpr int kMmaRows = 128;
inline constexpr int kMmaTile = 64;
inline constexpr int kMmaWarpRows = 32;
inline constexpr int kMmaTileBytes = kMmaTile * kTileRowBytes;
inline constexpr int kMmaRowsBytes = kMmaRows * kTileRowBytes;
// A stage: one tile of keys and one of values.
inline constexpr int kMmaStageBytes = 2 * kMmaTileBytes;
// Three stages; the block's own rows occupy the last one before and after the loop.
inline constexpr int kMmaForwardShared = 3 * kMmaStageBytes;
static_assert(kMmaRowsBytes == kMmaStageBytes);
inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

// Keys whose scores a warp holds at once.
inline constexpr int kMmaStep = 32;
using StepScores = float[2][kMmaStep / 8][4];

// Online softmax of one warp's 32 rows; a lane's rows are 16 m + g + 8 h. Weights are relative to the row's largest
// score so far, its base, in units of log 2: the largest weight is 1, which bf16 represents exactly.
struct RunningSoftmax {
  float base[2][2], sum[2][2];  // `sum` is this lane's partial sum

  __device__ RunningSoftmax() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      base[i / 2][i % 2] = -INFINITY;
      sum[i / 2][i % 2] = 0;
    }
  }

  // Raises the bases to the maximum of `scores` and rescales `out` if any base of the warp has changed.
  __device__ __forceinline__ void raise(const StepScores& scores, float (&out)[2][8][4], float scale) {
    float fade[2][2];
    bool raised = false;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = fmaxf(scores[m][0][2 * h], scores[m][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < kMmaStep / 8; ++n) top = fmaxf(top, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2)) * scale;
        const bool higher = top > base[m][h];
        fade[m][h] = higher ? exp2_approximate(base[m][h] - top) : 1.0f;
        base[m][h] = higher ? top : base[m][h];
        raised = raised || higher;
      }
    }
    if (!__any_sync(0xffffffffu, raised)) return;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] *= fade[m][h];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          out[m][n][2 * h] *= fade[m][h];
          out[m][n][2 * h + 1] *= fade[m][h];
        }
      }
    }
  }

  // Replaces scores by weights.
  __device__ __forceinline__ void weigh(StepScores& scores, float scale) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // A fully masked row keeps weights of zero.
        const float level = base[m][h] == -INFINITY ? 0.0f : base[m][h];
        float total = 0;
#pragma unroll
        for (int n = 0; n < kMmaStep / 8; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            scores[m][n][e] = exp2_approximate(fmaf(scores[m][n][e], scale, -level));
            total += scores[m][n][e];
          }
        }
        sum[m][h] += total;
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

// scores = 32 queries times kMmaStep keys, starting at row 16 * step of the tile.
__device__ __forceinline__ void set_scores(StepScores& scores, const Word (&q)[2][4][4], const TileReader& keys,
                                           int step, std::uint32_t stage) {
#pragma unroll
  for (int i = 0; i < kMmaStep; ++i) scores[i / (kMmaStep / 2)][i / 4 % (kMmaStep / 8)][i % 4] = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < kMmaStep / 16; ++n) {
      Word b[4];
      load_blocks(b, keys.at(step + n, k, stage));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma(scores[m][2 * n], q[m][k], b[0], b[1]);
        mma(scores[m][2 * n + 1], q[m][k], b[2], b[3]);
      }
    }
  }
}

// out += weights (rounded to bf16) times values.
__device__ __forceinline__ void add_values(float (&out)[2][8][4], const StepScores& weights, const TileReader& values,
                                           int step, std::uint32_t stage) {
#pragma unroll
  for (int j = 0; j < kMmaStep / 16; ++j) {
    Word left[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) as_operand(left[m], weights[m][2 * j], weights[m][2 * j + 1]);
#pragma unroll
    for (int d = 0; d < 4; ++d) {
      Word b[4];
      load_blocks_transposed(b, values.at(step + j, d, stage));
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma(out[m][2 * d], left[m], b[0], b[1]);
        mma(out[m][2 * d + 1], left[m], b[2], b[3]);
      }
    }
  }
}

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
  // Positions of the warp's rows. Rows beyond the last query are zero and not written.
  const int low = shape.past + first + warp * kMmaWarpRows, high = low + kMmaWarpRows - 1;
  const bool idle = warp * kMmaWarpRows >= rows;
  // Range of keys that the warp sees, its start rounded down to a step.
  const int from = max(0, low - shape.window + 1) / kMmaStep * kMmaStep, to = idle ? -1 : min(high, end - 1);

  const std::uint32_t stages = shared_address(shared), q_tile = stages + 2 * kMmaStageBytes;
  TileLoader<kMmaThreads> k_loader(x.k.row(key_row + begin) + kv_column, x.k.stride);
  TileLoader<kMmaThreads> v_loader(x.v.row(key_row + begin) + kv_column, x.v.stride);
  const auto load_stage = [&](int key, std::uint32_t stage) {
    if (key >= end) return;
    k_loader.load<kMmaTile>(stages + stage, end - key);
    v_loader.load<kMmaTile>(stages + stage + kMmaTileBytes, end - key);
    end_copies();
  };
  TileLoader<kMmaThreads>(x.q.row(query_row) + column, x.q.stride).load<kMmaRows>(q_tile, rows);
  load_stage(begin, 0);
  load_stage(begin + kMmaTile, kMmaStageBytes);

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
  __syncthreads();
  float out[2][8][4] = {};
  RunningSoftmax softmax;
  const float scale = shape.scale * kLog2E;

  // Attends to kMmaStep keys at `key` and computes the scores of the following keys into `next`: these products have no
  // dependency and overlap the exponentials. `scores` is already filled, except for the first keys.
  const auto attend = [&](StepScores& scores, int key, int step, std::uint32_t stage, StepScores& next, int next_step,
                          std::uint32_t next_stage) {
    if (key < from || key > to) return;
    if (key == from) set_scores(scores, q, k_reader, step, stage);
    if (!shape.all_see(low, high, key, kMmaStep)) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < kMmaStep / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int position = low + m * 16 + lane / 4 + e / 2 * 8, at = key + n * 8 + lane % 4 * 2 + e % 2;
            if (!shape.sees(position, at)) scores[m][n][e] = -INFINITY;
          }
        }
      }
    }
    softmax.raise(scores, out, scale);
    if (key + kMmaStep <= to) {
      set_scores(next, q, k_reader, next_step, next_stage);
      softmax.weigh(scores, scale);
      add_values(out, scores, v_reader, step, stage);
    } else {
      softmax.weigh(scores, scale);
      add_values(out, scores, v_reader, step, stage);
    }
  };
  StepScores even, odd;
  std::uint32_t stage = 0;
  for (int key = begin; key < end; key += kMmaTile) {
    const std::uint32_t next = stage == 2 * kMmaStageBytes ? 0 : stage + kMmaStageBytes;
    // This tile and the next have arrived, and no warp still reads the previous one.
    if (key > begin) {
      wait_for_copies();
      __syncthreads();
    }
    load_stage(key + 2 * kMmaTile, next == 2 * kMmaStageBytes ? 0 : next + kMmaStageBytes);
    attend(even, key, 0, stage, odd, kMmaStep / 16, stage);
    attend(odd, key + kMmaStep, kMmaStep / 16, stage, even, 0, next);
    stage = next;
  }
  __syncthreads();
  if (idle) return;

  unsigned char* through = shared + 2 * kMmaStageBytes;
  softmax.finish();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const int row = warp * kMmaWarpRows + m * 16;
    store_sums(through, row, lane, out[m], 1 / softmax.sum[m][0], 1 / softmax.sum[m][1]);
    if (x.log_sum.empty() || lane % 4 != 0) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + lane / 4 + h * 8;
      if (r < rows) x.log_sum(query_row + r, head) = softmax.base[m][h] * kLn2 + logf(softmax.sum[m][h]);
    }
  }
  __syncwarp();
  store_rows(x.out.row(query_row) + column, x.out.stride, through, warp * kMmaWarpRows, rows, lane);
}

}  // namespace essh::cuda::device
