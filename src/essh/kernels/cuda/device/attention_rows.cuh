#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Attention of one query at a time: bound by the reading of keys and values. A group of lanes takes a key row each; a
// block of four warps takes a share of the rows, and the last block of a query to finish combines the shares in their
// order. How many rows a share has follows from the number of rows that its query sees, so the bits of a query depend
// on nothing else in the launch.
namespace essh::cuda::device {

inline constexpr int kRowThreads = 128;
inline constexpr int kRowMaxColumns = 128;
inline constexpr int kFewestShareRows = 128;
inline constexpr int kMostShares = 64;

// Rows of each share of a query that sees `seen` rows; the last share may have fewer.
__host__ __device__ constexpr std::int64_t share_rows(std::int64_t seen) {
  const std::int64_t even = (seen + kMostShares - 1) / kMostShares;
  return (even + kFewestShareRows - 1) / kFewestShareRows * kFewestShareRows;
}
// The most shares of any query that sees up to `seen` rows.
__host__ __device__ constexpr std::int64_t most_shares(std::int64_t seen) {
  const std::int64_t shares = (seen + kFewestShareRows - 1) / kFewestShareRows;
  return shares < kMostShares ? shares : kMostShares;
}

// A block's share of the rows that its query sees: rows [begin, begin + count), one of `used` shares. Without rows
// where the query has fewer shares than the grid has room for.
struct Share {
  std::int64_t begin;
  int count, index, used;

  __device__ Share(std::int64_t seen, int share) : index(share) {
    const std::int64_t size = share_rows(seen);
    used = static_cast<int>((seen + size - 1) / size);
    begin = share * size;
    const std::int64_t left = seen - begin;
    count = static_cast<int>(left < 0 ? 0 : left < size ? left : size);
  }
};

// Where the shares of a query meet: room for `most` times head_dim + 2 floats, and a counter that is zero between
// kernels.
struct Shares {
  int most;
  float* partial;
  unsigned* arrived;
};

// exp for float, and for bf16 the faster power of two of scores that come in units of log 2.
template <class T>
__device__ __forceinline__ float weight_of(float score) {
  if constexpr (sizeof(T) == 4)
    return expf(score);
  else
    return exp2_approximate(score);
}
template <class T>
inline constexpr float kScoreUnit = sizeof(T) == 4 ? 1.0f : 1.44269504088896340736f;

// A softmax-weighted sum of rows as it goes along, `kSize` columns of it.
template <class T, int kSize>
struct WeightedSum {
  float largest = -INFINITY, sum = 0;
  float out[kSize] = {};

  // Factors that bring two sums to their common largest score; zero for a sum of nothing.
  __device__ __forceinline__ void merge(float other_largest, float other_sum, const float (&other)[kSize]) {
    const float top = fmaxf(largest, other_largest), base = top == -INFINITY ? 0.0f : top;
    const float mine = weight_of<T>(largest - base), theirs = weight_of<T>(other_largest - base);
    largest = top;
    sum = sum * mine + other_sum * theirs;
#pragma unroll
    for (int i = 0; i < kSize; ++i) out[i] = out[i] * mine + other[i] * theirs;
  }
};

// Attends with the query row `q` over `rows` rows; source(row, lane, key, value) gives a lane's parts of a key and a
// value row. Thread i < head_dim returns with column i in out[0], all with the largest score and the sum.
template <class T, int kLanes, bool kAligned, class Source>
__device__ __forceinline__ WeightedSum<T, 1> attend_row(const T* q, int head_dim, float scale, int rows,
                                                        const Source& source) {
  using Part = LanePart<T, kAligned>;
  constexpr int kSize = Part::kSize, kGroups = 32 / kLanes, kWarps = kRowThreads / 32, kBatch = 8;
  __shared__ float parts[kWarps][kRowMaxColumns + 2];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = warp * kGroups + lane / kLanes, place = lane % kLanes;

  float query[kSize];
  Part::load(q, place, head_dim).unpack(query);
#pragma unroll
  for (int i = 0; i < kSize; ++i) query[i] *= scale * kScoreUnit<T>;
  WeightedSum<T, kSize> mine;
  for (int base = 0; base < rows; base += kWarps * kGroups * kBatch) {
    Part keys[kBatch], values[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = base + u * kWarps * kGroups + group;
      keys[u] = values[u] = Part::zero();
      if (row < rows) source(row, place, keys[u], values[u]);
    }
    float scores[kBatch], top = mine.largest;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      float key[kSize], dot = 0;
      keys[u].unpack(key);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(query[i], key[i], dot);
      dot = sum_over_lanes<kLanes>(dot);
      scores[u] = base + u * kWarps * kGroups + group < rows ? dot : -INFINITY;
      top = fmaxf(top, scores[u]);
    }
    const float level = top == -INFINITY ? 0.0f : top, fade = weight_of<T>(mine.largest - level);
    mine.largest = top;
    mine.sum *= fade;
#pragma unroll
    for (int i = 0; i < kSize; ++i) mine.out[i] *= fade;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      float value[kSize];
      values[u].unpack(value);
      const float weight = weight_of<T>(scores[u] - level);
      mine.sum += weight;
#pragma unroll
      for (int i = 0; i < kSize; ++i) mine.out[i] = fmaf(weight, value[i], mine.out[i]);
    }
  }

  // The groups of a warp, then the warps.
#pragma unroll
  for (int step = 16; step >= kLanes; step /= 2) {
    float other[kSize];
#pragma unroll
    for (int i = 0; i < kSize; ++i) other[i] = __shfl_xor_sync(0xffffffffu, mine.out[i], step);
    const float largest = __shfl_xor_sync(0xffffffffu, mine.largest, step);
    const float sum = __shfl_xor_sync(0xffffffffu, mine.sum, step);
    mine.merge(largest, sum, other);
  }
  if (lane < kLanes) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) parts[warp][lane * kSize + i] = mine.out[i];
    parts[warp][kRowMaxColumns] = mine.largest;
    parts[warp][kRowMaxColumns + 1] = mine.sum;
  }
  __syncthreads();
  WeightedSum<T, 1> whole;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float out[1] = {parts[w][threadIdx.x]};
    whole.merge(parts[w][kRowMaxColumns], parts[w][kRowMaxColumns + 1], out);
  }
  return whole;
}

// Combines the shares of query `item`. Returns whether this block holds the result, in its threads below head_dim.
template <class T>
__device__ __forceinline__ bool gather(WeightedSum<T, 1>& sum, const Shares& shares, std::int64_t item,
                                       const Share& share, int head_dim) {
  if (share.used == 1) return true;
  __shared__ bool last;
  __shared__ float factors[kMostShares], sums[kMostShares];
  const int column = static_cast<int>(threadIdx.x), size = head_dim + 2;
  float* all = shares.partial + item * shares.most * size;
  float* mine = all + share.index * size;
  if (column < head_dim) mine[column] = sum.out[0];
  if (column == 0) {
    mine[head_dim] = sum.largest;
    mine[head_dim + 1] = sum.sum;
  }
  __threadfence();
  __syncthreads();
  // Counts up to used - 1 and back to zero, ready for the next kernel.
  const auto others = static_cast<unsigned>(share.used - 1);
  if (column == 0) last = atomicInc(shares.arrived + item, others) == others;
  __syncthreads();
  if (!last) return false;
  __threadfence();
  if (column < share.used) {
    factors[column] = __ldcg(all + column * size + head_dim);
    sums[column] = __ldcg(all + column * size + head_dim + 1);
  }
  __syncthreads();
  float top = -INFINITY;
  for (int s = 0; s < share.used; ++s) top = fmaxf(top, factors[s]);
  __syncthreads();
  const float base = top == -INFINITY ? 0.0f : top;
  if (column < share.used) factors[column] = weight_of<T>(factors[column] - base);
  __syncthreads();
  sum = {top, 0, {0}};
#pragma unroll 8
  for (int s = 0; s < share.used; ++s) {
    sum.sum = fmaf(factors[s], sums[s], sum.sum);
    if (column < head_dim) sum.out[0] = fmaf(factors[s], __ldcg(all + s * size + column), sum.out[0]);
  }
  return true;
}

// Writes a finished query.
template <class T>
__device__ __forceinline__ void write_row(const WeightedSum<T, 1>& sum, int head_dim, T* out, float* log_sum) {
  const int column = static_cast<int>(threadIdx.x);
  if (column < head_dim) out[column] = narrow<T>(sum.out[0] / sum.sum);
  if (column == 0 && log_sum != nullptr) *log_sum = sum.largest / kScoreUnit<T> + logf(sum.sum);
}

// One block for each query of each slice, blockIdx.x, and each share, blockIdx.y.
template <class T, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kRowThreads)
    attention_rows_forward(AttentionShape shape, ForwardOperands<T> x, Shares shares) {
  using Part = LanePart<T, kAligned>;
  const int item = static_cast<int>(blockIdx.x), j = item / shape.heads % shape.queries;
  const int head = item % shape.heads, sequence = item / shape.heads / shape.queries;
  const int column = head * shape.head_dim, kv_column = head / shape.group * shape.head_dim;
  const int position = shape.past + j, begin = max(0, position - shape.window + 1);
  const Share share(position + 1 - begin, static_cast<int>(blockIdx.y));
  if (share.count == 0) return;
  const std::int64_t row = static_cast<std::int64_t>(sequence) * shape.queries + j;
  const std::int64_t key_row = static_cast<std::int64_t>(sequence) * shape.keys() + begin + share.begin;
  const T* keys = x.k.row(key_row) + kv_column;
  const T* values = x.v.row(key_row) + kv_column;
  auto sum = attend_row<T, kLanes, kAligned>(x.q.row(row) + column, shape.head_dim, shape.scale, share.count,
                                             [&](int r, int lane, Part& key, Part& value) {
                                               key = Part::load(keys + r * x.k.stride, lane, shape.head_dim);
                                               value = Part::load(values + r * x.v.stride, lane, shape.head_dim);
                                             });
  if (gather(sum, shares, item, share, shape.head_dim))
    write_row(sum, shape.head_dim, x.out.row(row) + column, x.log_sum.empty() ? nullptr : &x.log_sum(row, head));
}

// delta = the sum of d_out * out over a head, and log_sum times `unit`, both slices x length. kLanes lanes to a row.
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
