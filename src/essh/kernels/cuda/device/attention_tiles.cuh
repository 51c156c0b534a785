#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Attention in float arithmetic for any type, any alignment and heads of up to 64 * kParts dimensions. A block of 16 x
// 16 threads works on tiles of 16 * kReach rows against 16 * kReach rows; thread (y, x) holds the scores of rows y + 16
// i against rows x + 16 j, and of weighted sums the columns 4 x .. 4 x + 3 of every 64. Each tile is summed separately
// before it joins the running sums, which keeps long sums accurate.
namespace essh::cuda::device {

template <int kReach, int kParts>
struct TileMath {
  static constexpr int kThreads = 256;
  static constexpr int kRows = 16 * kReach;
  static constexpr int kWeightStride = kRows + 4;

  int head_dim, padded, stride;  // columns; rounded up to 4 with zeros; floats between rows of a tile

  __host__ __device__ explicit TileMath(int dim) : head_dim(dim), padded((dim + 7) / 8 * 8), stride(padded + 4) {}
  __host__ __device__ int tile_floats() const { return kRows * stride; }
  static constexpr int kWeightFloats = kRows * kWeightStride;

  // Loads rows [0, kRows) of one head, zero from `rows` on.
  template <class T>
  __device__ void load(float* tile, const T* from, std::int64_t from_stride, int rows) const {
    for (int r = static_cast<int>(threadIdx.x) / 32; r < kRows; r += kThreads / 32) {
      for (int c = static_cast<int>(threadIdx.x) % 32; c < padded; c += 32)
        tile[r * stride + c] = r < rows && c < head_dim ? widen(from[r * from_stride + c]) : 0.0f;
    }
  }

  // scores = rows of a times rows of b
  __device__ void set_products(float (&scores)[kReach][kReach], const float* a, const float* b) const {
    const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
    for (int i = 0; i < kReach * kReach; ++i) scores[i / kReach][i % kReach] = 0;
    for (int d = 0; d < padded; d += 4) {
      float4 left[kReach], right[kReach];
#pragma unroll
      for (int i = 0; i < kReach; ++i) {
        left[i] = *reinterpret_cast<const float4*>(a + (y + 16 * i) * stride + d);
        right[i] = *reinterpret_cast<const float4*>(b + (x + 16 * i) * stride + d);
      }
#pragma unroll
      for (int i = 0; i < kReach; ++i) {
#pragma unroll
        for (int j = 0; j < kReach; ++j) {
          scores[i][j] = fmaf(left[i].x, right[j].x, scores[i][j]);
          scores[i][j] = fmaf(left[i].y, right[j].y, scores[i][j]);
          scores[i][j] = fmaf(left[i].z, right[j].z, scores[i][j]);
          scores[i][j] = fmaf(left[i].w, right[j].w, scores[i][j]);
        }
      }
    }
  }

  __device__ void store_weights(float* weights, const float (&values)[kReach][kReach]) const {
    const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
    for (int i = 0; i < kReach; ++i) {
#pragma unroll
      for (int j = 0; j < kReach; ++j) weights[(y + 16 * i) * kWeightStride + x + 16 * j] = values[i][j];
    }
  }

  // sums = sums * fade + weights times the rows of a tile
  __device__ void add_weighted_rows(float (&sums)[kReach][kParts][4], const float (&fade)[kReach], const float* weights,
                                    const float* tile) const {
    const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int column = 4 * x + 64 * p;
      if (column >= padded) continue;
      float fresh[kReach][4] = {};
      for (int r = 0; r < kRows; r += 4) {
        float4 left[kReach];
#pragma unroll
        for (int i = 0; i < kReach; ++i)
          left[i] = *reinterpret_cast<const float4*>(weights + (y + 16 * i) * kWeightStride + r);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float4 row = *reinterpret_cast<const float4*>(tile + (r + k) * stride + column);
#pragma unroll
          for (int i = 0; i < kReach; ++i) {
            const float weight = k == 0 ? left[i].x : k == 1 ? left[i].y : k == 2 ? left[i].z : left[i].w;
            fresh[i][0] = fmaf(weight, row.x, fresh[i][0]);
            fresh[i][1] = fmaf(weight, row.y, fresh[i][1]);
            fresh[i][2] = fmaf(weight, row.z, fresh[i][2]);
            fresh[i][3] = fmaf(weight, row.w, fresh[i][3]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kReach; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[i][p][k] = fmaf(sums[i][p][k], fade[i], fresh[i][k]);
      }
    }
  }

  // Stores the rows below `rows`, each times its factor.
  template <class T>
  __device__ void write(const float (&sums)[kReach][kParts][4], const float (&factor)[kReach], T* to,
                        std::int64_t to_stride, int rows) const {
    const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
    for (int i = 0; i < kReach; ++i) {
      if (y + 16 * i >= rows) continue;
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int column = 4 * x + 64 * p + k;
          if (column < head_dim) to[(y + 16 * i) * to_stride + column] = narrow<T>(sums[i][p][k] * factor[i]);
        }
      }
    }
  }

  __host__ int forward_shared() const {
    return (2 * tile_floats() + kWeightFloats) * int{sizeof(float)};
  }
  __host__ int backward_shared() const {
    return (4 * tile_floats() + kWeightFloats) * int{sizeof(float)};
  }
};

template <class T, int kReach, int kParts>
__global__ void __launch_bounds__(256)
    attention_tiles_forward(AttentionShape shape, BlockOrder order, ForwardOperands<T> x) {
  using Math = TileMath<kReach, kParts>;
  constexpr int kRows = Math::kRows;
  extern __shared__ __align__(128) unsigned char shared[];
  const Math math(shape.head_dim);
  float* q = reinterpret_cast<float*>(shared);
  float* passing = q + math.tile_floats();
  float* weights = passing + math.tile_floats();
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int head = slice % shape.heads, sequence = slice / shape.heads;
  const int column = head * shape.head_dim, kv_column = head / shape.group * shape.head_dim;
  const int first = (order.blocks - 1 - rank) * kRows, rows = min(kRows, shape.queries - first);
  const std::int64_t query_row = static_cast<std::int64_t>(sequence) * shape.queries + first;
  const std::int64_t key_row = static_cast<std::int64_t>(sequence) * shape.keys();
  const int begin = max(0, shape.past + first - shape.window + 1) / kRows * kRows, end = shape.past + first + rows;
  const int y = static_cast<int>(threadIdx.x) / 16, lane = static_cast<int>(threadIdx.x) % 16;

  math.load(q, x.q.row(query_row) + column, x.q.stride, rows);
  float sums[kReach][kParts][4] = {}, largest[kReach], total[kReach] = {}, fade[kReach];
#pragma unroll
  for (int i = 0; i < kReach; ++i) largest[i] = -INFINITY;
  for (int key = begin; key < end; key += kRows) {
    __syncthreads();
    math.load(passing, x.k.row(key_row + key) + kv_column, x.k.stride, end - key);
    __syncthreads();
    float scores[kReach][kReach];
    math.set_products(scores, q, passing);
#pragma unroll
    for (int i = 0; i < kReach; ++i) {
      const int position = shape.past + first + y + 16 * i;
      float top = largest[i];
#pragma unroll
      for (int j = 0; j < kReach; ++j) {
        scores[i][j] = shape.sees(position, key + lane + 16 * j) ? scores[i][j] * shape.scale : -INFINITY;
        top = fmaxf(top, scores[i][j]);
      }
#pragma unroll
      for (int step = 8; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
      const float level = top == -INFINITY ? 0.0f : top;
      fade[i] = expf(largest[i] - level);
      largest[i] = top;
      float fresh = 0;
#pragma unroll
      for (int j = 0; j < kReach; ++j) {
        scores[i][j] = expf(scores[i][j] - level);
        fresh += scores[i][j];
      }
      total[i] = total[i] * fade[i] + sum_over_lanes<16>(fresh);
    }
    math.store_weights(weights, scores);
    __syncthreads();
    math.load(passing, x.v.row(key_row + key) + kv_column, x.v.stride, end - key);
    __syncthreads();
    math.add_weighted_rows(sums, fade, weights, passing);
  }
  float inverse[kReach];
#pragma unroll
  for (int i = 0; i < kReach; ++i) {
    inverse[i] = 1 / total[i];
    if (!x.log_sum.empty() && lane == 0 && y + 16 * i < rows)
      x.log_sum(query_row + y + 16 * i, head) = largest[i] + logf(total[i]);
  }
  math.write(sums, inverse, x.out.row(query_row) + column, x.out.stride, rows);
}

// The passes of attention_mma_backward.cuh: holds queries, with query heads as slices; with kKeys holds keys, with kv
// heads as slices.
template <class T, int kReach, int kParts, bool kKeys>
__global__ void __launch_bounds__(256)
    attention_tiles_backward(AttentionShape shape, BlockOrder order, BackwardOperands<T> x) {
  using Math = TileMath<kReach, kParts>;
  constexpr int kRows = Math::kRows;
  extern __shared__ __align__(128) unsigned char shared[];
  const Math math(shape.head_dim);
  float* held_tile = reinterpret_cast<float*>(shared);
  float* held_other_tile = held_tile + math.tile_floats();
  float* tile = held_other_tile + math.tile_floats();
  float* other_tile = tile + math.tile_floats();
  float* weights = other_tile + math.tile_floats();
  const auto [slice, rank] = order.place(static_cast<int>(blockIdx.x));
  const int slices = kKeys ? shape.kv_heads() : shape.heads, length = shape.queries;
  const int sequence = slice / slices, held_column = slice % slices * shape.head_dim;
  const std::int64_t base = static_cast<std::int64_t>(sequence) * length;
  const int first = (kKeys ? rank : order.blocks - 1 - rank) * kRows, rows = min(kRows, length - first);
  const int begin = kKeys ? first : max(0, first - shape.window + 1) / kRows * kRows;
  const int end = kKeys ? min(length, first + rows - 1 + shape.window) : first + rows;
  const int y = static_cast<int>(threadIdx.x) / 16, lane = static_cast<int>(threadIdx.x) % 16;

  const auto held = kKeys ? x.k : x.q, held_other = kKeys ? x.v : x.d_out;
  const auto passing = kKeys ? x.q : x.k, passing_other = kKeys ? x.d_out : x.v;
  math.load(held_tile, held.row(base + first) + held_column, held.stride, rows);
  math.load(held_other_tile, held_other.row(base + first) + held_column, held_other.stride, rows);
  float sums[kReach][kParts][4] = {}, other_sums[kReach][kParts][4] = {}, one[kReach], scale[kReach];
#pragma unroll
  for (int i = 0; i < kReach; ++i) {
    one[i] = 1;
    scale[i] = shape.scale;
  }
  const int heads = kKeys ? shape.group : 1;
  for (int member = 0; member < heads; ++member) {
    const int head = kKeys ? slice % slices * shape.group + member : slice % slices;
    const int column = (kKeys ? head : head / shape.group) * shape.head_dim;
    const float* log_sum = x.log_sum + (static_cast<std::int64_t>(sequence) * shape.heads + head) * length;
    const float* delta = x.delta + (static_cast<std::int64_t>(sequence) * shape.heads + head) * length;
    for (int at = begin; at < end; at += kRows) {
      __syncthreads();
      math.load(tile, passing.row(base + at) + column, passing.stride, end - at);
      math.load(other_tile, passing_other.row(base + at) + column, passing_other.stride, end - at);
      __syncthreads();
      float scores[kReach][kReach], d_scores[kReach][kReach];
      math.set_products(scores, held_tile, tile);
      math.set_products(d_scores, held_other_tile, other_tile);
#pragma unroll
      for (int i = 0; i < kReach; ++i) {
#pragma unroll
        for (int j = 0; j < kReach; ++j) {
          const int row = first + y + 16 * i, passed = at + lane + 16 * j;
          const int query = kKeys ? passed : row, key = kKeys ? row : passed;
          const bool seen = query < length && shape.sees(query, key);
          scores[i][j] = seen ? expf(scores[i][j] * shape.scale - log_sum[query]) : 0.0f;
          d_scores[i][j] = seen ? scores[i][j] * (d_scores[i][j] - delta[query]) : 0.0f;
        }
      }
      if (kKeys) {
        math.store_weights(weights, scores);
        __syncthreads();
        math.add_weighted_rows(other_sums, one, weights, other_tile);
        __syncthreads();
      }
      math.store_weights(weights, d_scores);
      __syncthreads();
      math.add_weighted_rows(sums, one, weights, tile);
    }
  }
  const auto to = kKeys ? x.d_k : x.d_q;
  math.write(sums, scale, to.row(base + first) + held_column, to.stride, rows);
  if (kKeys) math.write(other_sums, one, x.d_v.row(base + first) + held_column, x.d_v.stride, rows);
}

}  // namespace essh::cuda::device
