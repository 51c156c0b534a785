#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Attention of single queries, or of the few that share a kv head: bound by reading keys and values. A group of lanes
// reads one key row of a head. A warp processes shares of the rows, and the last warp of a query to finish combines its
// shares. The size of a share depends only on the number of rows that its query sees, and kSpanShares adjacent shares,
// a span, are always added up before spans are: by the warp that computed them, if it has all of them. So a query's
// bits do not depend on the rest of the launch or the number of blocks.
namespace essh::cuda::device {

inline constexpr int kRowWarps = 4, kRowThreads = kRowWarps * 32;
inline constexpr int kRowMaxColumns = 128;
inline constexpr int kFewestShareRows = 128;
inline constexpr int kMostShares = 64, kSpanShares = 4;

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

__host__ __device__ constexpr int spans_of(int shares) {
  return (shares + kSpanShares - 1) / kSpanShares;
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

// Partial results of an item's queries, shares or spans: up to `most` times share_floats() per query. One arrival
// counter per warp, which is zero between kernels.
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
  __device__ __forceinline__ void merge(const WeightedSum& other) {
    merge(other.largest, other.sum, other.out);
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

// The sums of one query from where they were written, by one group of lanes: `used` shares, each span added up first,
// or spans. The groups of a warp have the same number of them.
template <class T, int kLanes>
__device__ __forceinline__ WeightedSum<T, 16 / int{sizeof(T)}> combine(const float* all, int used, bool spans,
                                                                       int head_dim, int lane) {
  constexpr int kSize = 16 / int{sizeof(T)};
  const int place = lane % kLanes, stride = share_floats(head_dim);
  WeightedSum<T, kSize> whole;
#pragma unroll 1
  for (int first = 0; first < used; first += kSpanShares) {
    WeightedSum<T, kSize> some[kSpanShares];
#pragma unroll
    for (int i = 0; i < kSpanShares; ++i) {
      const float* const from = all + (first + i) * stride;
      if (first + i >= used) break;
      some[i].largest = __ldcg(from + stride - kShareEnds);
      some[i].sum = __ldcg(from + stride - kShareEnds + 1);
#pragma unroll
      for (int c = 0; c < kSize; c += 4) {
        if (place * kSize >= head_dim) break;
        const float4 x = __ldcg(reinterpret_cast<const float4*>(from + place * kSize + c));
        some[i].out[c] = x.x;
        some[i].out[c + 1] = x.y;
        some[i].out[c + 2] = x.z;
        some[i].out[c + 3] = x.w;
      }
    }
    // Those that are not there leave a sum as it is.
    if (spans) {
#pragma unroll
      for (int i = 0; i < kSpanShares; ++i) whole.merge(some[i]);
    } else {
#pragma unroll
      for (int i = 1; i < kSpanShares; ++i) some[0].merge(some[i]);
      whole.merge(some[0]);
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
// The sums of a thread to which a share is added now and then, in shared memory: in registers they would take the room
// of rows.
template <class T, int kQueries, int kThreads>
struct KeptSums {
  static constexpr int kSize = 16 / int{sizeof(T)}, kNumbers = kQueries * (kSize + 2);
  float* mine;

  // Of the block's `index`-th sums.
  __device__ __forceinline__ explicit KeptSums(int index) {
    extern __shared__ float kept_sums[];
    mine = kept_sums + index * kNumbers * kThreads + threadIdx.x;
  }
  __device__ __forceinline__ float& at(int query, int i) const { return mine[(query * (kSize + 2) + i) * kThreads]; }
  __device__ __forceinline__ WeightedSum<T, kSize> get(int query) const {
    WeightedSum<T, kSize> sum;
    sum.largest = at(query, kSize);
    sum.sum = at(query, kSize + 1);
#pragma unroll
    for (int c = 0; c < kSize; ++c) sum.out[c] = at(query, c);
    return sum;
  }
  __device__ __forceinline__ void set(int query, const WeightedSum<T, kSize>& sum) const {
    at(query, kSize) = sum.largest;
    at(query, kSize + 1) = sum.sum;
#pragma unroll
    for (int c = 0; c < kSize; ++c) at(query, c) = sum.out[c];
  }
  __device__ __forceinline__ void clear() const {
#pragma unroll
    for (int i = 0; i < kQueries; ++i) set(i, {});
  }
  __device__ __forceinline__ void merge(int query, const WeightedSum<T, kSize>& other) const {
    auto sum = get(query);
    sum.merge(other);
    set(query, sum);
  }
};
// Bytes of shared memory that attend_shares() needs.
template <class T, int kQueries, int kThreads>
constexpr std::size_t kept_bytes() {
  return 2 * sizeof(float) * KeptSums<T, kQueries, kThreads>::kNumbers * kThreads;
}

// Attends with the queries of `own`, which see `seen` rows, by one warp: calls attend(sums, share) for every share if
// gridDim.y is 1, else for those of every gridDim.y-th span, or every gridDim.y-th share if there are more blocks than
// spans; and finish(query, place, sum) in the warp that ends up with the results. kThreads of a block.
template <class T, int kLanes, int kQueries, int kThreads, class Attend, class Finish>
__device__ __forceinline__ void attend_shares(const Shares& shares, const GroupItem& own, std::int64_t seen,
                                              int head_dim, int lane, const Attend& attend, const Finish& finish) {
  constexpr int kSize = 16 / int{sizeof(T)};
  // In 32 bits: registers are few.
  const int rows = static_cast<int>(seen), share_size = static_cast<int>(share_rows(seen));
  const int used = (rows + share_size - 1) / share_size, blocks = static_cast<int>(gridDim.y);
  const bool spans = blocks <= spans_of(used);
  const int taken = blocks == 1 ? used : spans ? kSpanShares : 1, parts = (used + taken - 1) / taken;
  const int place = lane % kLanes, size = share_floats(head_dim), query_size = shares.most * size;
  if (static_cast<int>(blockIdx.y) >= parts) return;
  float* all = shares.partial + own.item * kQueries * query_size;
  const KeptSums<T, kQueries, kThreads> span(0), whole(1);
  for (int part = static_cast<int>(blockIdx.y); part < parts; part += blocks) {
    span.clear();
    whole.clear();
    const int end = min(used, (part + 1) * taken);
#pragma unroll 1
    for (int index = part * taken; index < end; ++index) {
      const int begin = index * share_size;
      WeightedSum<T, kSize> sums[kQueries];
      attend(sums, Share{begin, min(share_size, rows - begin), index == used - 1});
      const bool ends = index == end - 1 || index % kSpanShares == kSpanShares - 1;
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        span.merge(i, sums[i]);
        if (ends) whole.merge(i, span.get(i));
      }
      if (ends) span.clear();
    }
    if (!own.writes) continue;
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const auto sum = whole.get(i);
      if (parts == 1) {
        finish(i, place, sum);
        continue;
      }
      float* mine = all + i * query_size + part * size;
      if (place * kSize < head_dim) {
#pragma unroll
        for (int c = 0; c < kSize; c += 4)
          *reinterpret_cast<float4*>(mine + place * kSize + c) = {sum.out[c], sum.out[c + 1], sum.out[c + 2],
                                                                  sum.out[c + 3]};
      }
      if (place == 0) *reinterpret_cast<float2*>(mine + size - kShareEnds) = {sum.largest, sum.sum};
    }
  }
  if (parts == 1) return;
  __threadfence();
  __syncwarp();
  const int others = min(parts, blocks) - 1;
  if (others > 0) {
    // The counter wraps from `others` to zero, ready for the next kernel.
    const auto limit = static_cast<unsigned>(others);
    const unsigned before = lane == 0 ? atomicInc(shares.arrived + own.counter, limit) : 0;
    if (__shfl_sync(0xffffffffu, before, 0) != limit) return;
    __threadfence();
  }
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const auto sum = combine<T, kLanes>(all + i * query_size, parts, spans, head_dim, lane);
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
  attend_shares<T, kLanes, 1, kRowThreads>(shares, {item, item, lane < kLanes}, position + 1 - begin, shape.head_dim,
                                           lane, attend, [&](int, int place, const WeightedSum<T, Part::kSize>& sum) {
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
