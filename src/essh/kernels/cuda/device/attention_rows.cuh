#pragma once
#include "essh/kernels/cuda/device/attention_shape.cuh"
#include "essh/kernels/cuda/device/mma.cuh"
#include "essh/kernels/cuda/device/row_vector.cuh"

// Attention of one query at a time: bound by the reading of keys and values. A group of lanes takes a key row each; a
// block of four warps takes a share of the rows, and the last block of a query to finish puts the shares together,
// always in the same order.
namespace essh::cuda::device {

inline constexpr int kRowThreads = 128;
inline constexpr int kRowMaxColumns = 128;

// Where the shares of a query meet: splits x (head_dim + 2) floats for each query, and a counter that is zero between
// kernels.
struct Shares {
  int splits;
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

// Attends with the query row `q` over rows [begin, end); source(row, lane) gives a lane's parts of a key and a value
// row. Thread i < head_dim returns with column i in out[0], all with the largest score and the sum.
template <class T, int kLanes, bool kAligned, class Source>
__device__ __forceinline__ WeightedSum<T, 1> attend_row(const T* q, int head_dim, float scale, int begin, int end,
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
  for (int base = begin; base < end; base += kWarps * kGroups * kBatch) {
    Part keys[kBatch], values[kBatch];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int row = base + u * kWarps * kGroups + group;
      keys[u] = values[u] = Part::zero();
      if (row < end) source(row, place, keys[u], values[u]);
    }
    float scores[kBatch], top = mine.largest;
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      float key[kSize], dot = 0;
      keys[u].unpack(key);
#pragma unroll
      for (int i = 0; i < kSize; ++i) dot = fmaf(query[i], key[i], dot);
      dot = sum_over_lanes<kLanes>(dot);
      scores[u] = base + u * kWarps * kGroups + group < end ? dot : -INFINITY;
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

// Rows [begin, end) of share `split`: equal parts of [begin, end), a multiple of a batch of all groups.
struct RowRange {
  int begin, end;
};
__device__ __forceinline__ RowRange share_of(RowRange all, int split, int splits, int multiple) {
  const int even = (all.end - all.begin + splits - 1) / splits, size = (even + multiple - 1) / multiple * multiple;
  const int begin = min(all.end, all.begin + split * size);
  return {begin, min(all.end, begin + size)};
}

// Puts the shares of query `item` together. Returns whether this block holds the result, in its threads below head_dim.
template <class T>
__device__ __forceinline__ bool gather(WeightedSum<T, 1>& sum, const Shares& shares, int item, int split,
                                       int head_dim) {
  if (shares.splits == 1) return true;
  __shared__ bool last;
  const int column = static_cast<int>(threadIdx.x), size = head_dim + 2;
  float* mine = shares.partial + (static_cast<std::int64_t>(item) * shares.splits + split) * size;
  if (column < head_dim) mine[column] = sum.out[0];
  if (column == 0) {
    mine[head_dim] = sum.largest;
    mine[head_dim + 1] = sum.sum;
  }
  __threadfence();
  __syncthreads();
  // Counts up to splits - 1 and back to zero, ready for the next kernel.
  const auto others = static_cast<unsigned>(shares.splits - 1);
  if (column == 0) last = atomicInc(shares.arrived + item, others) == others;
  __syncthreads();
  if (!last) return false;
  __threadfence();
  WeightedSum<T, 1> whole;
  for (int s = 0; s < shares.splits; ++s) {
    const float* part = shares.partial + (static_cast<std::int64_t>(item) * shares.splits + s) * size;
    const float out[1] = {column < head_dim ? __ldcg(part + column) : 0.0f};
    whole.merge(__ldcg(part + head_dim), __ldcg(part + head_dim + 1), out);
  }
  sum = whole;
  return true;
}

// Writes a finished query.
template <class T>
__device__ __forceinline__ void write_row(const WeightedSum<T, 1>& sum, int head_dim, T* out, float* log_sum) {
  const int column = static_cast<int>(threadIdx.x);
  if (column < head_dim) out[column] = narrow<T>(sum.out[0] / sum.sum);
  if (column == 0 && log_sum != nullptr) *log_sum = sum.largest / kScoreUnit<T> + logf(sum.sum);
}

// One block for each split of each query of each slice.
template <class T, int kLanes, bool kAligned>
__global__ void __launch_bounds__(kRowThreads)
    attention_rows_forward(AttentionShape shape, ForwardOperands<T> x, Shares shares) {
  using Part = LanePart<T, kAligned>;
  const int item = static_cast<int>(blockIdx.x) / shares.splits, split = static_cast<int>(blockIdx.x) % shares.splits;
  const int slice = item / shape.queries, j = item % shape.queries;
  const int head = slice % shape.heads, sequence = slice / shape.heads, column = head * shape.head_dim;
  const int position = shape.past + j;
  const std::int64_t row = static_cast<std::int64_t>(sequence) * shape.queries + j;
  const std::int64_t key_row = static_cast<std::int64_t>(sequence) * shape.keys();
  const auto share =
      share_of({max(0, position - shape.window + 1), position + 1}, split, shares.splits, kRowThreads / kLanes);
  auto sum = attend_row<T, kLanes, kAligned>(x.q.row(row) + column, shape.head_dim, shape.scale, share.begin, share.end,
                                             [&](int r, int lane, Part& key, Part& value) {
                                               key = Part::load(x.k.row(key_row + r) + column, lane, shape.head_dim);
                                               value = Part::load(x.v.row(key_row + r) + column, lane, shape.head_dim);
                                             });
  if (gather(sum, shares, item, split, shape.head_dim))
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
