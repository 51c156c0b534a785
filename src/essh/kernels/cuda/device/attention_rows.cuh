#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Attention of single queries, or of the few that share a kv head: bound by reading keys and values. A group of lanes
// reads one key row. A block of four warps processes shares of the rows, and the last block of a query to finish
// combines its shares in order. The size of a share depends only on the number of rows that its query sees, so a
// query's bits do not depend on the rest of the launch or the number of blocks.
namespace essh::cuda::device {

inline constexpr int kRowThreads = 128;
inline constexpr int kRowMaxColumns = 128;
inline constexpr int kFewestShareRows = 128;
inline constexpr int kMostShares = 64;

// Rows per share for a query that sees `seen` rows; the last share may be smaller.
__host__ __device__ constexpr std::int64_t share_rows(std::int64_t seen) {
  const std::int64_t even = (seen + kMostShares - 1) / kMostShares;
  return (even + kFewestShareRows - 1) / kFewestShareRows * kFewestShareRows;
}
// Maximum number of shares of any query that sees up to `seen` rows.
__host__ __device__ constexpr std::int64_t most_shares(std::int64_t seen) {
  const std::int64_t shares = (seen + kFewestShareRows - 1) / kFewestShareRows;
  return shares < kMostShares ? shares : kMostShares;
}

// Rows [begin, begin + count) of a query's visible rows.
struct Share {
  std::int64_t begin;
  int count;
  bool last;
};

// Partial results of an item's queries: `most` times head_dim + 2 floats per query, and one arrival counter per item,
// which is zero between kernels.
struct Shares {
  int most;
  float* partial;
  unsigned* arrived;
};

// exp for float; for bf16 the faster exp2 of scores in units of log 2.
template <class T>
__device__ __forceinline__ float weight_of(float score) {
  if constexpr (sizeof(T) == 4)
    return expf(score);
  else
    return exp2_approximate(score);
}
template <class T>
inline constexpr float kScoreUnit = sizeof(T) == 4 ? 1.0f : 1.44269504088896340736f;

// A running softmax-weighted sum of rows, `kSize` of its columns.
template <class T, int kSize>
struct WeightedSum {
  float largest = -INFINITY, sum = 0;
  float out[kSize] = {};

  // Rescales both sums to the common maximum; an empty sum contributes zero.
  __device__ __forceinline__ void merge(float other_largest, float other_sum, const float (&other)[kSize]) {
    const float top = fmaxf(largest, other_largest), base = top == -INFINITY ? 0.0f : top;
    const float mine = weight_of<T>(largest - base), theirs = weight_of<T>(other_largest - base);
    largest = top;
    // Explicit fmaf: which of the two products is rounded must not depend on the surrounding code.
    sum = fmaf(sum, mine, other_sum * theirs);
#pragma unroll
    for (int i = 0; i < kSize; ++i) out[i] = fmaf(out[i], mine, other[i] * theirs);
  }
};

// Steps of a warp's running sum for one query; its groups of kLanes lanes take different rows.

// Turns the lane's part of the query into units of the scores.
template <class T, bool kAligned, int kSize>
__device__ __forceinline__ void scale_query(const LanePart<T, kAligned>& part, float scale, float (&query)[kSize]) {
  part.unpack(query);
#pragma unroll
  for (int c = 0; c < kSize; ++c) query[c] *= scale * kScoreUnit<T>;
}
// Adds kCount rows per group; one that is not there, by there(i), is zero. Their parts are LaneParts or others whose
// numbers are scale() times those of unpack().
template <int kLanes, class T, int kSize, class Part, int kCount, class There>
__device__ __forceinline__ void add_rows(WeightedSum<T, kSize>& sum, const float (&query)[kSize],
                                         const Part (&keys)[kCount], const Part (&values)[kCount], const There& there) {
  float scores[kCount], top = sum.largest;
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    float key[kSize], dot = 0;
    keys[u].unpack(key);
#pragma unroll
    for (int c = 0; c < kSize; ++c) dot = fmaf(query[c], key[c], dot);
    dot = sum_over_lanes<kLanes>(dot) * keys[u].scale();
    scores[u] = there(u) ? dot : -INFINITY;
    top = fmaxf(top, scores[u]);
  }
  const float level = top == -INFINITY ? 0.0f : top, fade = weight_of<T>(sum.largest - level);
  sum.largest = top;
  sum.sum *= fade;
#pragma unroll
  for (int c = 0; c < kSize; ++c) sum.out[c] *= fade;
#pragma unroll
  for (int u = 0; u < kCount; ++u) {
    float value[kSize];
    values[u].unpack(value);
    const float weight = weight_of<T>(scores[u] - level);
    sum.sum += weight;
    const float factor = weight * values[u].scale();
#pragma unroll
    for (int c = 0; c < kSize; ++c) sum.out[c] = fmaf(factor, value[c], sum.out[c]);
  }
}
// Adds up the groups; all of them get the sum.
template <int kLanes, class T, int kSize>
__device__ __forceinline__ void merge_groups(WeightedSum<T, kSize>& sum) {
#pragma unroll
  for (int step = 16; step >= kLanes; step /= 2) {
    float other[kSize];
#pragma unroll
    for (int c = 0; c < kSize; ++c) other[c] = __shfl_xor_sync(0xffffffffu, sum.out[c], step);
    const float other_largest = __shfl_xor_sync(0xffffffffu, sum.largest, step);
    const float other_sum = __shfl_xor_sync(0xffffffffu, sum.sum, step);
    sum.merge(other_largest, other_sum, other);
  }
}

// Attends to `rows` rows for each query; source(row, lane, key, value) loads a lane's part of a key and a value row, a
// LanePart or another RowPart whose numbers are scale() times those of unpack(). On return, thread i < head_dim has
// column i of each query in out[0]; all threads have the maxima and the sums.
template <class T, int kLanes, bool kAligned, class RowPart = LanePart<T, kAligned>, int kQueries, class Source>
__device__ __forceinline__ void attend_rows(WeightedSum<T, 1> (&sums)[kQueries], const T* const (&q)[kQueries],
                                            int head_dim, float scale, int rows, const Source& source) {
  using Part = LanePart<T, kAligned>;
  constexpr int kSize = Part::kSize, kGroups = 32 / kLanes, kWarps = kRowThreads / 32, kBatch = 8;
  __shared__ float parts[kQueries][kWarps][kRowMaxColumns + 2];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp * kGroups + lane / kLanes, place = lane % kLanes;

  float query[kQueries][kSize];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) scale_query(Part::load(q[i], place, head_dim), scale, query[i]);
  WeightedSum<T, kSize> mine[kQueries];
  for (int base = 0; base < rows; base += kWarps * kGroups * kBatch) {
    RowPart keys[kBatch], values[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = base + u * kWarps * kGroups + group;
      keys[u] = values[u] = RowPart::zero();
      if (row < rows) source(row, place, keys[u], values[u]);
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i)
      add_rows<kLanes>(mine[i], query[i], keys, values,
                       [&](int u) { return base + u * kWarps * kGroups + group < rows; });
  }

  // Reduces over the groups of a warp, then over the warps.
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    merge_groups<kLanes>(mine[i]);
    if (lane < kLanes) {
#pragma unroll
      for (int c = 0; c < kSize; ++c) parts[i][warp][lane * kSize + c] = mine[i].out[c];
      parts[i][warp][kRowMaxColumns] = mine[i].largest;
      parts[i][warp][kRowMaxColumns + 1] = mine[i].sum;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    sums[i] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float out[1] = {parts[i][w][threadIdx.x]};
      sums[i].merge(parts[i][w][kRowMaxColumns], parts[i][w][kRowMaxColumns + 1], out);
    }
  }
}

// Combines all shares of one query in order.
template <class T>
__device__ __forceinline__ WeightedSum<T, 1> combine(const float* all, int used, int head_dim) {
  __shared__ float factors[kMostShares], sums[kMostShares];
  const int column = static_cast<int>(threadIdx.x), size = head_dim + 2;
  __syncthreads();
  if (column < used) {
    factors[column] = __ldcg(all + column * size + head_dim);
    sums[column] = __ldcg(all + column * size + head_dim + 1);
  }
  __syncthreads();
  WeightedSum<T, 1> whole;
  for (int s = 0; s < used; ++s) whole.largest = fmaxf(whole.largest, factors[s]);
  __syncthreads();
  const float base = whole.largest == -INFINITY ? 0.0f : whole.largest;
  if (column < used) factors[column] = weight_of<T>(factors[column] - base);
  __syncthreads();
#pragma unroll 8
  for (int s = 0; s < used; ++s) {
    whole.sum = fmaf(factors[s], sums[s], whole.sum);
    if (column < head_dim) whole.out[0] = fmaf(factors[s], __ldcg(all + s * size + column), whole.out[0]);
  }
  return whole;
}

// Attends with the queries of `item`, which see `seen` rows: calls attend(sums, share) for this block's shares, every
// gridDim.y-th. Returns whether this block holds the results, in its threads below head_dim.
template <class T, int kQueries, class Attend>
__device__ __forceinline__ bool attend_shares(WeightedSum<T, 1> (&sums)[kQueries], const Shares& shares,
                                              std::int64_t item, std::int64_t seen, int head_dim,
                                              const Attend& attend) {
  __shared__ bool last;
  const std::int64_t share_size = share_rows(seen);
  const int used = static_cast<int>((seen + share_size - 1) / share_size), blocks = static_cast<int>(gridDim.y);
  const int column = static_cast<int>(threadIdx.x), size = head_dim + 2, query_size = shares.most * size;
  if (static_cast<int>(blockIdx.y) >= used) return false;
  float* all = shares.partial + item * kQueries * query_size;
  for (int index = static_cast<int>(blockIdx.y); index < used; index += blocks) {
    const std::int64_t begin = index * share_size, left = seen - begin;
    attend(sums, Share{begin, static_cast<int>(left < share_size ? left : share_size), index == used - 1});
    if (used == 1) return true;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      float* mine = all + i * query_size + index * size;
      if (column < head_dim) mine[column] = sums[i].out[0];
      if (column == 0) {
        mine[head_dim] = sums[i].largest;
        mine[head_dim + 1] = sums[i].sum;
      }
    }
    __syncthreads();
  }
  __threadfence();
  __syncthreads();
  const int others = min(used, blocks) - 1;
  if (others > 0) {
    // The counter wraps from `others` to zero, ready for the next kernel.
    if (column == 0) {
      const auto limit = static_cast<unsigned>(others);
      last = atomicInc(shares.arrived + item, limit) == limit;
    }
    __syncthreads();
    if (!last) return false;
    __threadfence();
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) sums[i] = combine<T>(all + i * query_size, used, head_dim);
  return true;
}

// Writes the result of a query.
template <class T>
__device__ __forceinline__ void write_row(const WeightedSum<T, 1>& sum, int head_dim, T* out, float* log_sum) {
  const int column = static_cast<int>(threadIdx.x);
  if (column < head_dim) out[column] = narrow<T>(sum.out[0] / sum.sum);
  if (column == 0 && log_sum != nullptr) *log_sum = sum.largest / kScoreUnit<T> + logf(sum.sum);
}

// blockIdx.x is one query of one slice.
template <class T, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kRowThreads)
    attention_rows_forward(AttentionShape shape, ForwardOperands<T> x, Shares shares) {
  using Part = LanePart<T, kAligned>;
  const int item = static_cast<int>(blockIdx.x), j = item / shape.heads % shape.queries;
  const int head = item % shape.heads, sequence = item / shape.heads / shape.queries;
  const int column = head * shape.head_dim, kv_column = head / shape.group * shape.head_dim;
  const int position = shape.past + j, begin = max(0, position - shape.window + 1);
  const std::int64_t row = static_cast<std::int64_t>(sequence) * shape.queries + j;
  const std::int64_t key_row = static_cast<std::int64_t>(sequence) * shape.keys() + begin;
  WeightedSum<T, 1> sum[1];
  const auto attend = [&](WeightedSum<T, 1>(&sums)[1], const Share& share) {
    const T* keys = x.k.row(key_row + share.begin) + kv_column;
    const T* values = x.v.row(key_row + share.begin) + kv_column;
    attend_rows<T, kLanes, kAligned>(sums, {x.q.row(row) + column}, shape.head_dim, shape.scale, share.count,
                                     [&](int r, int lane, Part& key, Part& value) {
                                       key = Part::load(keys + r * x.k.stride, lane, shape.head_dim);
                                       value = Part::load(values + r * x.v.stride, lane, shape.head_dim);
                                     });
  };
  if (attend_shares(sum, shares, item, position + 1 - begin, shape.head_dim, attend))
    write_row(sum[0], shape.head_dim, x.out.row(row) + column, x.log_sum.empty() ? nullptr : &x.log_sum(row, head));
}

// delta = sum of d_out * out over a head, and log_sum times `unit`, both slices x length. kLanes lanes per row.
template <class T, int kLanes, bool kAligned>
__global__ void attention_delta(AttentionShape shape, std::int64_t rows, Matrix<const T> out, Matrix<const T> d_out,
                                Matrix<const float> log_sum, float unit, float* log_sum_out, float* delta) {
  using Part = LanePart<T, kAligned>;
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool valid = item < rows * shape.heads;
  const std::int64_t row = valid ? item / shape.heads : 0;
  const int head = valid ? static_cast<int>(item % shape.heads) : 0, column = head * shape.head_dim;
  float a[Part::kSize], b[Part::kSize], sum = 0;
  Part::load(out.row(row) + column, lane, shape.head_dim).unpack(a);
  Part::load(d_out.row(row) + column, lane, shape.head_dim).unpack(b);
#pragma unroll
  for (int i = 0; i < Part::kSize; ++i) sum = fmaf(a[i], b[i], sum);
  sum = sum_over_lanes<kLanes>(sum);
  if (!valid || lane != 0) return;
  const std::int64_t to = (row / shape.queries * shape.heads + head) * shape.queries + row % shape.queries;
  delta[to] = sum;
  log_sum_out[to] = log_sum(row, head) * unit;
}

}  // namespace essh::cuda::device
