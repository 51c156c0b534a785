#include "essh/kernels/window_attention.h"

#include "essh/kernels/cpu/attend_row.h"

namespace essh {
namespace {

// Query rows whose scores against a whole window fit in the second-level cache.
constexpr Index kQueryBlock = 32;
// Columns of a panel of transposed keys.
constexpr Index kPanel = 64;

// Key rows that some query of [first, last) sees.
struct KeyRange {
  Index begin, end;
  Index size() const { return end - begin; }
};
KeyRange seen_by(Index first, Index last, Index past, Index window) {
  return {std::max<Index>(0, past + first - window + 1), past + last};
}
// The same, extended down to the start of a panel.
KeyRange panels_seen_by(Index first, Index last, Index past, Index window) {
  const auto range = seen_by(first, last, past, window);
  return {range.begin / kPanel * kPanel, range.end};
}
// Row stride of the scores of a block of queries. Not a power of two, so that rows do not map to the same cache set.
Index score_stride(Index keys, Index window) {
  return std::min(keys, std::min(keys, window) + kQueryBlock + kPanel) + 16;
}

// One head's rows, packed.
template <class T>
T* packed_rows(cpu::Scratch& scratch, Index rows, Index dim, const T* from, Index stride) {
  T* packed = scratch.take<T>(rows * dim);
  cpu::copy_block(rows, dim, from, stride, packed, dim);
  return packed;
}

// One head's rows transposed, panel after panel: [panel][dim][kPanel].
template <class T>
T* packed_panels(cpu::Scratch& scratch, Index rows, Index dim, const T* from, Index stride) {
  T* packed = scratch.take<T>((rows + kPanel - 1) / kPanel * kPanel * dim);
  for (Index r = 0; r < rows; r += kPanel)
    cpu::transpose(std::min(kPanel, rows - r), dim, from + r * stride, stride, packed + r * dim, kPanel);
  return packed;
}

// scores = x times the rows of `range`, read from the panels.
template <class T>
void set_scores(Index rows, KeyRange range, Index dim, const T* x, Index x_stride, const T* panels, T* scores,
                Index stride) {
  for (Index start = range.begin; start < range.end; start += kPanel) {
    cpu::set_product<T>(rows, std::min(kPanel, range.end - start), dim, {x, x_stride, 1}, panels + start * dim, kPanel,
                        scores + (start - range.begin), stride);
  }
}

// The first column of the kv head that a query head reads.
template <class Op>
Index kv_column(const Op& op, Index head) {
  return head / (op.q.cols / op.k.cols) * op.head_dim;
}

// Few queries, one at a time.
template <class T>
void attend_few(cpu::Scratch& scratch, const WindowAttentionForward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, keys = op.past + op.queries, column = head * dim;
  T* scores = scratch.take<T>(keys);
  for (Index j = 0; j < op.queries; ++j) {
    const Index row = sequence * op.queries + j;
    const auto range = seen_by(j, j + 1, op.past, op.window);
    const auto seen = [&](Matrix<const T> m) {
      return m.block(sequence * keys + range.begin, range.size(), kv_column(op, head), dim);
    };
    const T log_sum =
        cpu::attend_row<T>(op.q.row(row) + column, seen(op.k), seen(op.v), scores, op.out.row(row) + column);
    if (!op.log_sum.empty()) op.log_sum(row, head) = log_sum;
  }
}

template <class T>
void attend(cpu::Scratch& scratch, const WindowAttentionForward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, keys = op.past + op.queries, column = head * dim;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  const T* k_panels = packed_panels(scratch, keys, dim, op.k.row(sequence * keys) + kv_column(op, head), op.k.stride);
  const T* v = packed_rows(scratch, keys, dim, op.v.row(sequence * keys) + kv_column(op, head), op.v.stride);
  const Index stride = score_stride(keys, op.window);
  T* weights = scratch.take<T>(kQueryBlock * stride);
  for (Index first = 0; first < op.queries; first += kQueryBlock) {
    const Index rows = std::min(kQueryBlock, op.queries - first), row = sequence * op.queries + first;
    const auto range = panels_seen_by(first, first + rows, op.past, op.window);
    set_scores(rows, range, dim, op.q.row(row) + column, op.q.stride, k_panels, weights, stride);
    for (Index j = 0; j < rows; ++j) {
      const auto visible = seen_by(first + j, first + j + 1, op.past, op.window);
      const T log_sum = cpu::softmax_row(weights + j * stride, range.size(), visible.begin - range.begin,
                                         visible.end - range.begin, scale);
      if (!op.log_sum.empty()) op.log_sum(row + j, head) = log_sum;
    }
    cpu::set_product<T>(rows, dim, range.size(), {weights, stride, 1}, v + range.begin * dim, dim,
                        op.out.row(row) + column, op.out.stride);
  }
}

// Backward of one kv head and the query heads that read it.
template <class T>
class AttendBackward {
 public:
  AttendBackward(cpu::Scratch& scratch, const WindowAttentionBackward<T>& op, Index sequence, Index kv_head)
      : op_(op),
        dim_(op.head_dim),
        kv_column_(kv_head * dim_),
        base_(sequence * op.length),
        stride_(score_stride(op.length, op.window)) {
    const auto k = op.k.row(base_) + kv_column_, v = op.v.row(base_) + kv_column_;
    k_ = packed_rows(scratch, op.length, dim_, k, op.k.stride);
    k_panels_ = packed_panels(scratch, op.length, dim_, k, op.k.stride);
    v_panels_ = packed_panels(scratch, op.length, dim_, v, op.v.stride);
    for (T** rows : {&q_, &d_out_, &d_k_, &d_v_}) *rows = scratch.take<T>(op.length * dim_);
    for (T** scores : {&weights_, &d_scores_}) *scores = scratch.take<T>(kQueryBlock * stride_);
    for (T* sums : {d_k_, d_v_}) std::fill_n(sums, op.length * dim_, T(0));
  }

  // d_q of one query head, and its contribution to d_k and d_v.
  void add(Index head) {
    const Index length = op_.length, column = head * dim_;
    cpu::copy_block(length, dim_, op_.q.row(base_) + column, op_.q.stride, q_, dim_);
    cpu::copy_block(length, dim_, op_.d_out.row(base_) + column, op_.d_out.stride, d_out_, dim_);
    for (Index first = 0; first < length; first += kQueryBlock) {
      const Index rows = std::min(kQueryBlock, length - first);
      const auto range = panels_seen_by(first, first + rows, 0, op_.window);
      set_weights(head, first, rows, range);
      const T *q = q_ + first * dim_, *d_out = d_out_ + first * dim_;
      const Index keys = range.size(), at = range.begin * dim_;
      cpu::set_product<T>(rows, dim_, keys, {d_scores_, stride_, 1}, k_ + at, dim_, op_.d_q.row(base_ + first) + column,
                          op_.d_q.stride);
      cpu::add_product<T>(keys, dim_, rows, {d_scores_, 1, stride_}, q, dim_, d_k_ + at, dim_);
      cpu::add_product<T>(keys, dim_, rows, {weights_, 1, stride_}, d_out, dim_, d_v_ + at, dim_);
    }
  }
  void store() const {
    cpu::copy_block(op_.length, dim_, d_k_, dim_, op_.d_k.row(base_) + kv_column_, op_.d_k.stride);
    cpu::copy_block(op_.length, dim_, d_v_, dim_, op_.d_v.row(base_) + kv_column_, op_.d_v.stride);
  }

 private:
  // Softmax weights of a block of queries against the keys of `range`, and the gradients of the scores.
  void set_weights(Index head, Index first, Index rows, KeyRange range) {
    const Index columns = range.size();
    const T scale = T(1) / std::sqrt(static_cast<T>(dim_));
    set_scores(rows, range, dim_, q_ + first * dim_, dim_, k_panels_, weights_, stride_);
    set_scores(rows, range, dim_, d_out_ + first * dim_, dim_, v_panels_, d_scores_, stride_);
    for (Index j = 0; j < rows; ++j) {
      const auto visible = seen_by(first + j, first + j + 1, 0, op_.window);
      const Index begin = visible.begin - range.begin, end = visible.end - range.begin;
      T* weight = weights_ + j * stride_;
      T* d_score = d_scores_ + j * stride_;
      const T log_sum = op_.log_sum(base_ + first + j, head);
      for (Index c = begin; c < end; ++c) weight[c] = weight[c] * scale - log_sum;
      cpu::exp(end - begin, weight + begin, weight + begin);
      std::fill(weight, weight + begin, T(0));
      std::fill(weight + end, weight + columns, T(0));
      const T mean = cpu::dot(dim_, op_.out.row(base_ + first + j) + head * dim_, d_out_ + (first + j) * dim_);
      for (Index c = 0; c < columns; ++c) d_score[c] = weight[c] * (d_score[c] - mean) * scale;
    }
  }

  const WindowAttentionBackward<T>& op_;
  Index dim_, kv_column_, base_, stride_;
  const T *k_, *k_panels_, *v_panels_;
  T *q_, *d_out_, *d_k_, *d_v_;  // [token][dim]
  T *weights_, *d_scores_;       // [query of a block][key of its range]
};

}  // namespace

template <class T>
void run(cpu::Stream& stream, const WindowAttentionForward<T>& op) {
  constexpr Index kFewQueries = 8;
  const Index heads = op.q.cols / op.head_dim;
  stream.pool().each(op.sequences * heads, [&](Index task, int thread) {
    cpu::Scratch scratch(stream, thread);
    if (op.queries < kFewQueries)
      attend_few(scratch, op, task / heads, task % heads);
    else
      attend(scratch, op, task / heads, task % heads);
  });
}

template <class T>
void run(cpu::Stream& stream, const WindowAttentionBackward<T>& op) {
  const Index kv_heads = op.k.cols / op.head_dim, group = op.q.cols / op.k.cols;
  stream.pool().each(op.sequences * kv_heads, [&](Index task, int thread) {
    cpu::Scratch scratch(stream, thread);
    const Index kv_head = task % kv_heads;
    AttendBackward<T> backward(scratch, op, task / kv_heads, kv_head);
    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) backward.add(head);
    backward.store();
  });
}

template void run(cpu::Stream&, const WindowAttentionForward<float>&);
template void run(cpu::Stream&, const WindowAttentionForward<double>&);
template void run(cpu::Stream&, const WindowAttentionBackward<float>&);
template void run(cpu::Stream&, const WindowAttentionBackward<double>&);

}  // namespace essh
