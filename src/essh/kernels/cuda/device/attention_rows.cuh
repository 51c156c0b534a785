#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Attention of single queries, or of the few that share a kv head: bound by reading keys and values. A group of lanes
// reads one key row of a head. A warp processes shares of the rows, and the last warp of a query to finish combines its
// shares. The size of a share depends only on the number of rows that its query sees, so a query's bits do not depend
// on the rest of the launch or the number of blocks.
namespace essh::cuda::device {

inline constexpr int kRowWarps = 4, kRowThreads = kRowWarps * 32;
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

// Floats of a share's partial result: the columns, from a multiple of 4 on the largest score and the sum of weights.
inline constexpr int kShareEnds = 4;
__host__ __device__ constexpr int share_floats(int head_dim) {
  return (head_dim + 7) / 8 * 8 + kShareEnds;
}

// Partial results of an item's queries: `most` times share_floats() per query. One arrival counter per warp, which is
// zero between kernels.
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

// What the groups of a warp do at a time: take different rows of one head, or the same row of different heads.
enum class Groups { Rows, Heads };

// Adds `rows` rows to the sums of each query; source(row, place, key, value) loads a lane's part of a key and a value
// row, a LanePart or another RowPart whose numbers are scale() times those of unpack().
template <Groups kTake, int kLanes, class RowPart, class T, int kSize, int kQueries, class Source>
__device__ __forceinline__ void add_share(WeightedSum<T, kSize> (&sums)[kQueries],
                                          const float (&queries)[kQueries][kSize], int rows, int lane,
                                          const Source& source) {
  constexpr int kStride = kTake == Groups::Rows ? 32 / kLanes : 1, kBatch = 8;
  const int own = kTake == Groups::Rows ? lane / kLanes : 0, place = lane % kLanes;
  for (int base = 0; base < rows; base += kStride * kBatch) {
    RowPart keys[kBatch], values[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = base + u * kStride + own;
      keys[u] = values[u] = RowPart::zero();
      if (row < rows) source(row, place, keys[u], values[u]);
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i)
      add_rows<kLanes>(sums[i], queries[i], keys, values, [&](int u) { return base + u * kStride + own < rows; });
  }
  if constexpr (kTake == Groups::Rows) {
#pragma unroll
    for (int i = 0; i < kQueries; ++i) merge_groups<kLanes>(sums[i]);
  }
}

// One query from its shares, in order, by one group of lanes. The groups of a warp have the same number of shares.
template <class T, int kLanes>
__device__ __forceinline__ WeightedSum<T, 16 / int{sizeof(T)}> combine(const float* all, int used, int head_dim,
                                                                       int lane) {
  constexpr int kSize = 16 / int{sizeof(T)}, kOwn = kMostShares / kLanes;
  const int place = lane % kLanes, stride = share_floats(head_dim);
  float factor[kOwn], sum[kOwn];
  WeightedSum<T, kSize> whole;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int s = i * kLanes + place;
    const float* const ends = all + s * stride + stride - kShareEnds;
    factor[i] = s < used ? __ldcg(ends) : -INFINITY;
    sum[i] = s < used ? __ldcg(ends + 1) : 0.0f;
    whole.largest = fmaxf(whole.largest, factor[i]);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    whole.largest = fmaxf(whole.largest, __shfl_xor_sync(0xffffffffu, whole.largest, step));
  const float base = whole.largest == -INFINITY ? 0.0f : whole.largest;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    factor[i] = weight_of<T>(factor[i] - base);
    whole.sum = fmaf(factor[i], sum[i], whole.sum);
  }
  whole.sum = sum_over_lanes<kLanes>(whole.sum);
  const bool inside = place * kSize < head_dim;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    for (int s = i * kLanes; s < min(used, (i + 1) * kLanes); ++s) {
      const float f = __shfl_sync(0xffffffffu, factor[i], s - i * kLanes, kLanes);
#pragma unroll
      for (int c = 0; c < kSize; c += 4) {
        if (!inside) break;
        const float4 x = __ldcg(reinterpret_cast<const float4*>(all + s * stride + place * kSize + c));
        const float part[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) whole.out[c + e] = fmaf(f, part[e], whole.out[c + e]);
      }
    }
  }
  return whole;
}

// The work of a group of lanes: the item of its queries, and whether it writes their results. The groups of a warp
// share an arrival counter.
struct GroupItem {
  std::int64_t item, counter;
  bool writes;
};
// Attends with the queries of `own`, which see `seen` rows, by one warp: calls attend(sums, share) for every
// gridDim.y-th share, and finish(query, place, sum) in the warp that ends up with the results.
template <class T, int kLanes, int kQueries, class Attend, class Finish>
__device__ __forceinline__ void attend_shares(const Shares& shares, const GroupItem& own, std::int64_t seen,
                                              int head_dim, int lane, const Attend& attend, const Finish& finish) {
  constexpr int kSize = 16 / int{sizeof(T)};
  const std::int64_t share_size = share_rows(seen);
  const int used = static_cast<int>((seen + share_size - 1) / share_size), blocks = static_cast<int>(gridDim.y);
  const int place = lane % kLanes, size = share_floats(head_dim), query_size = shares.most * size;
  if (static_cast<int>(blockIdx.y) >= used) return;
  float* all = shares.partial + own.item * kQueries * query_size;
  for (int index = static_cast<int>(blockIdx.y); index < used; index += blocks) {
    const std::int64_t begin = index * share_size, left = seen - begin;
    WeightedSum<T, kSize> sums[kQueries];
    attend(sums, Share{begin, static_cast<int>(left < share_size ? left : share_size), index == used - 1});
    if (!own.writes) continue;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (used == 1) {
        finish(i, place, sums[i]);
        continue;
      }
      float* mine = all + i * query_size + index * size;
      if (place * kSize < head_dim) {
#pragma unroll
        for (int c = 0; c < kSize; c += 4)
          *reinterpret_cast<float4*>(mine + place * kSize + c) = {sums[i].out[c], sums[i].out[c + 1],
                                                                  sums[i].out[c + 2], sums[i].out[c + 3]};
      }
      if (place == 0) *reinterpret_cast<float2*>(mine + size - kShareEnds) = {sums[i].largest, sums[i].sum};
    }
  }
  if (used == 1) return;
  __threadfence();
  __syncwarp();
  const int others = min(used, blocks) - 1;
  if (others > 0) {
    // The counter wraps from `others` to zero, ready for the next kernel.
    const auto limit = static_cast<unsigned>(others);
    const unsigned before = lane == 0 ? atomicInc(shares.arrived + own.counter, limit) : 0;
    if (__shfl_sync(0xffffffffu, before, 0) != limit) return;
    __threadfence();
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const auto sum = combine<T, kLanes>(all + i * query_size, used, head_dim, lane);
    if (own.writes) finish(i, place, sum);
  }
}

// Writes a lane's part of the result of a query.
template <class T, int kSize>
__device__ __forceinline__ void write_part(const WeightedSum<T, kSize>& sum, int place, int head_dim, T* out) {
#pragma unroll
  for (int c = 0; c < kSize; ++c)
    if (place * kSize + c < head_dim) out[place * kSize + c] = narrow<T>(sum.out[c] / sum.sum);
}

// A warp takes one query of one slice.
template <class T, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kRowThreads, 4)
    attention_rows_forward(AttentionShape shape, ForwardOperands<T> x, Shares shares, int items) {
  using Part = LanePart<T, kAligned>;
  const int item = static_cast<int>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (item >= items) return;
  const int j = item / shape.heads % shape.queries;
  const int head = item % shape.heads, sequence = item / shape.heads / shape.queries;
  const int column = head * shape.head_dim, kv_column = head / shape.group * shape.head_dim;
  const int position = shape.past + j, begin = max(0, position - shape.window + 1);
  const std::int64_t row = static_cast<std::int64_t>(sequence) * shape.queries + j;
  const std::int64_t key_row = static_cast<std::int64_t>(sequence) * shape.keys() + begin;
  const auto attend = [&](WeightedSum<T, Part::kSize>(&sums)[1], const Share& share) {
    const T* keys = x.k.row(key_row + share.begin) + kv_column;
    const T* values = x.v.row(key_row + share.begin) + kv_column;
    float query[1][Part::kSize];
    scale_query(Part::load(x.q.row(row) + column, lane % kLanes, shape.head_dim), shape.scale, query[0]);
    add_share<Groups::Rows, kLanes, Part>(sums, query, share.count, lane,
                                          [&](int r, int place, Part& key, Part& value) {
                                            key = Part::load(keys + r * x.k.stride, place, shape.head_dim);
                                            value = Part::load(values + r * x.v.stride, place, shape.head_dim);
                                          });
  };
  attend_shares<T, kLanes, 1>(shares, {item, item, lane < kLanes}, position + 1 - begin, shape.head_dim, lane, attend,
                              [&](int, int place, const WeightedSum<T, Part::kSize>& sum) {
                                write_part(sum, place, shape.head_dim, x.out.row(row) + column);
                                if (place == 0 && !x.log_sum.empty())
                                  x.log_sum(row, head) = sum.largest / kScoreUnit<T> + logf(sum.sum);
                              });
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
