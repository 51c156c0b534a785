#include "essh/device/cuda/launch.cuh"
#include "essh/kernels/draw_token.h"

namespace essh {
namespace {

using Word = unsigned long long;
constexpr int kDrawThreads = 1024, kWarps = kDrawThreads / 32;
constexpr int kBuckets = kDrawBuckets, kPerThread = kBuckets / kDrawThreads;
static_assert(kBuckets % kDrawThreads == 0);
// Candidates that are put into order by comparing all with all.
constexpr int kListed = 1024;
// Bits of a filter that says which tokens may have a changed logit.
constexpr unsigned kFilter = 1 << 15;

// What the threads of a block share about their row.
struct Shared {
  // Of the candidates in each bucket: their number, and the sum of their weights in two words.
  unsigned counts[kBuckets], low[kBuckets], high[kBuckets];
  LogitKey list[kListed];
  Word amounts[kListed];
  unsigned filter[kFilter / 32];
  Word warps[kWarps];
  // What one thread has found.
  LogitKey key;
  Word sum;
  int bucket;
  unsigned listed;
};

// All threads of the block call these, and get the same result.
__device__ Word block_max(Word x, Shared& shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = x;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) x = max(x, shared.warps[w]);
  __syncthreads();
  return x;
}
__device__ Word block_sum(Word x, Shared& shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (threadIdx.x % 32 == 0) shared.warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < kWarps; ++w) x += shared.warps[w];
  __syncthreads();
  return x;
}
// The sum over the threads before this one.
__device__ Word block_sum_before(Word x, Shared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Word sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Word other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) shared.warps[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += shared.warps[w];
  __syncthreads();
  return sum - x;
}

enum class By { Count, Weight };

// A row of logits at work. All threads of the block call its functions together.
class Row {
 public:
  __device__ Row(const DrawToken& op, const DrawOptions& options, Shared& shared)
      : shared_(shared),
        logits_(op.logits.row(options.row)),
        size_(static_cast<int>(op.logits.cols)),
        bits_(weight_bits(op.logits.cols)),
        changes_(op.changes.data + options.first_change),
        change_count_(static_cast<int>(options.changes)),
        repetition_penalty_(options.repetition_penalty),
        inverse_temperature_(1 / options.temperature) {
    for (int i = threadIdx.x; i < static_cast<int>(kFilter / 32); i += kDrawThreads) shared_.filter[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < change_count_; i += kDrawThreads) {
      const auto token = static_cast<unsigned>(changes_[i].token);
      atomicOr(&shared_.filter[token % kFilter / 32], 1u << token % 32);
    }
    __syncthreads();
  }

  // The key of the best candidate; 0 if there is none.
  __device__ LogitKey find_best() {
    LogitKey best = 0;
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) best = max(best, key(c));
    best = block_max(best, shared_);
    best_ = value_of_key(best);
    return best;
  }

  // The weight of the candidates with at least this key, at no larger distance.
  __device__ Word mass(LogitKey cut, double furthest) {
    Word sum = 0;
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) {
      const auto k = key(c);
      if (k != 0 && k >= cut && distance(k) <= furthest) sum += weight(k);
    }
    return block_sum(sum, shared_);
  }

  // The weight of all candidates.
  __device__ Word mass() {
    fill_by_distance();
    Word sum = 0;
    for (int b = threadIdx.x; b < kBuckets; b += kDrawThreads) sum += amount(By::Weight, b);
    return block_sum(sum, shared_);
  }

  // The candidate at which the running number of candidates, or sum of their weights, reaches `target`: its key, or 0
  // if that never happens.
  __device__ LogitKey select(By by, Word target) {
    fill_by_distance();
    if (!find_bucket(by, target)) return 0;
    int bucket = shared_.bucket;
    target -= shared_.sum;
    unsigned count = shared_.counts[bucket];
    __syncthreads();
    if (count <= kListed) {
      list([&](LogitKey k) { return draw_bucket(distance(k)) == bucket; });
      return find_listed(by, target);
    }

    // A dense bucket: smaller ranges of keys, each a kBuckets-th of the one before, until few are left.
    LogitKey high = 0, low = ~LogitKey{0};
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) {
      const auto k = key(c);
      if (k == 0 || draw_bucket(distance(k)) != bucket) continue;
      high = max(high, k);
      low = min(low, k);
    }
    high = block_max(high, shared_);
    low = ~block_max(~low, shared_);
    filled_ = false;
    while (count > kListed) {
      int shift = 0;
      while ((high - low) >> shift >= kBuckets) ++shift;
      fill([&](LogitKey k) { return k >= low && k <= high ? static_cast<int>((high - k) >> shift) : -1; });
      if (!find_bucket(by, target)) return 0;
      bucket = shared_.bucket;
      target -= shared_.sum;
      count = shared_.counts[bucket];
      __syncthreads();
      high -= static_cast<LogitKey>(bucket) << shift;
      const LogitKey wide = (LogitKey{1} << shift) - 1;
      if (high - low > wide) low = high - wide;
    }
    list([&](LogitKey k) { return k >= low && k <= high; });
    return find_listed(by, target);
  }

  // The best logit before changes below this key, by its key; 0 if there is none.
  __device__ LogitKey find_next_logit(LogitKey above) {
    LogitKey best = 0;
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) {
      const auto k = score_key(logits_[c], c);
      if (k < above) best = max(best, k);
    }
    return block_max(best, shared_);
  }
  // log sum exp(logits), `largest` being the largest.
  __device__ double log_sum(float largest) {
    Word sum = 0;
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) {
      const float logit = logits_[c];
      if (logit > -INFINITY) sum += draw_weight(exp(-draw_distance(largest, logit, 1)), bits_);
    }
    sum = block_sum(sum, shared_);
    return static_cast<double>(largest) +
           log(static_cast<double>(sum) / static_cast<double>(std::uint64_t{1} << bits_));
  }
  __device__ DrawnToken scored(int token, double log_sum) const {
    return {token, clipped_logprob(static_cast<double>(logits_[token]) - log_sum)};
  }

 private:
  __device__ LogitKey key(int token) const {
    float value = logits_[token];
    if (change_count_ > 0 && shared_.filter[token % kFilter / 32] >> token % 32 & 1) {
      int first = 0, end = change_count_;  // the place of the token is in [first, end]
      while (first < end) {
        const int middle = (first + end) / 2;
        if (changes_[middle].token < token)
          first = middle + 1;
        else
          end = middle;
      }
      if (first < change_count_ && changes_[first].token == token)
        value = changed_logit(value, changes_[first], repetition_penalty_);
    }
    return draw_key(value, token);
  }
  __device__ double distance(LogitKey k) const { return draw_distance(best_, value_of_key(k), inverse_temperature_); }
  __device__ Word weight(LogitKey k) const { return draw_weight(exp(-distance(k)), bits_); }

  __device__ void fill_by_distance() {
    if (filled_) return;
    fill([&](LogitKey k) { return draw_bucket(distance(k)); });
    filled_ = true;
  }
  // Puts every candidate into the bucket bucket_of(key); -1: into none.
  template <class BucketOf>
  __device__ void fill(const BucketOf& bucket_of) {
    for (int b = threadIdx.x; b < kBuckets; b += kDrawThreads) shared_.counts[b] = shared_.low[b] = shared_.high[b] = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) {
      const auto k = key(c);
      const int bucket = k == 0 ? -1 : bucket_of(k);
      if (bucket < 0) continue;
      atomicAdd(&shared_.counts[bucket], 1u);
      // An addition of 64 bits from two of 32, which the hardware has: the sum does not depend on the order.
      const Word w = weight(k);
      const auto low = static_cast<unsigned>(w);
      const unsigned before = atomicAdd(&shared_.low[bucket], low);
      const unsigned high = static_cast<unsigned>(w >> 32) + (before + low < before);
      if (high != 0) atomicAdd(&shared_.high[bucket], high);
    }
    __syncthreads();
  }

  __device__ Word amount(By by, int bucket) const {
    return by == By::Count ? shared_.counts[bucket]
                           : static_cast<Word>(shared_.high[bucket]) << 32 | shared_.low[bucket];
  }

  // shared_.bucket becomes the one where the running sum reaches the target, shared_.sum the sum before it.
  __device__ bool find_bucket(By by, Word target) {
    Word mine = 0;
    const int first = static_cast<int>(threadIdx.x) * kPerThread;
    for (int i = 0; i < kPerThread; ++i) mine += amount(by, first + i);
    Word before = block_sum_before(mine, shared_);
    if (threadIdx.x == 0) shared_.bucket = -1;
    __syncthreads();
    for (int i = 0; i < kPerThread; ++i) {
      const Word next = before + amount(by, first + i);
      if (before < target && next >= target) {
        shared_.bucket = first + i;
        shared_.sum = before;
      }
      before = next;
    }
    __syncthreads();
    return shared_.bucket >= 0;
  }

  // shared_.list becomes the candidates that are `inside`, kListed at most, in any order.
  template <class Inside>
  __device__ void list(const Inside& inside) {
    if (threadIdx.x == 0) shared_.listed = 0;
    __syncthreads();
    for (int c = threadIdx.x; c < size_; c += kDrawThreads) {
      const auto k = key(c);
      if (k == 0 || !inside(k)) continue;
      const unsigned place = atomicAdd(&shared_.listed, 1u);
      if (place < kListed) shared_.list[place] = k;
    }
    __syncthreads();
  }

  __device__ LogitKey find_listed(By by, Word target) {
    const int count = static_cast<int>(min(shared_.listed, static_cast<unsigned>(kListed)));
    if (threadIdx.x == 0) shared_.key = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kDrawThreads)
      shared_.amounts[i] = by == By::Count ? 1 : weight(shared_.list[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kDrawThreads) {
      const LogitKey mine = shared_.list[i];
      Word before = 0;
      for (int j = 0; j < count; ++j) before += shared_.list[j] > mine ? shared_.amounts[j] : 0;
      if (before < target && before + shared_.amounts[i] >= target) shared_.key = mine;
    }
    __syncthreads();
    return shared_.key;
  }

  Shared& shared_;
  const float* logits_;
  int size_, bits_;
  const LogitChange* changes_;
  int change_count_;
  double repetition_penalty_, inverse_temperature_;
  float best_ = 0;
  bool filled_ = false;
};

__device__ int draw(Row& row, const DrawOptions& options) {
  const auto best = row.find_best();
  if (best == 0) return -1;
  if (options.temperature == 0) return token_of_key(best);
  LogitKey cut = 0;  // candidates below it are dropped
  Word mass = row.mass();
  if (options.top_k > 0) {
    cut = row.select(By::Count, static_cast<Word>(options.top_k));
    if (cut != 0) mass = row.mass(cut, INFINITY);
  }
  if (options.top_p < 1) cut = row.select(By::Weight, top_p_target(options.top_p, mass));
  if (options.top_p < 1 || options.furthest < INFINITY) mass = row.mass(cut, options.furthest);
  const auto random = random_bits(options.seed, kDrawStream, options.position);
  // The candidates that are kept are the first: those behind them do not matter.
  return token_of_key(row.select(By::Weight, draw_target(random, mass)));
}

// A block per row.
__global__ void __launch_bounds__(kDrawThreads) draw_rows(DrawToken op) {
  __shared__ Shared shared;
  cuda::after_previous();
  const Index i = blockIdx.x;
  const DrawOptions options = op.options[i];
  Row row(op, options, shared);
  const int token = draw(row, options);
  if (options.alternatives < 0 || token < 0) {
    if (threadIdx.x == 0) op.drawn[i] = {token, 0};
    return;
  }
  auto next = row.find_next_logit(~LogitKey{0});
  const double log_sum = row.log_sum(value_of_key(next));
  if (threadIdx.x == 0) op.drawn[i] = row.scored(token, log_sum);
  for (int n = 0; n < options.alternatives; ++n) {
    if (threadIdx.x == 0) op.top(i, n) = next == 0 ? DrawnToken{} : row.scored(token_of_key(next), log_sum);
    next = row.find_next_logit(next);
  }
}

}  // namespace

void run(cuda::Stream& stream, const DrawToken& op) {
  cuda::launch(stream, "draw token",
               {.grid = static_cast<unsigned>(op.options.size), .block = kDrawThreads, .early = true}, draw_rows, op);
}

}  // namespace essh
