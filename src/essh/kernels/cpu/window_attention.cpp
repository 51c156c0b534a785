#include "essh/kernels/window_attention.h"

#include "essh/kernels/cpu/attend_row.h"

namespace essh {
namespace {

// Rows of queries whose scores against a whole window stay in the second-level cache.
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
// The same from the start of a panel.
KeyRange panels_seen_by(Index first, Index last, Index past, Index window) {
  const auto range = seen_by(first, last, past, window);
  return {range.begin / kPanel * kPanel, range.end};
}
// Room for the scores of one query against every key of a block's range. Not a power of two: rows of scores must not
// fall into the same cache set.
Index score_stride(Index keys, Index window) {
  return std::min(keys, window + kQueryBlock + kPanel) + 16;
}

// One head's rows, side by side.
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

// scores = x times the rows of `range`, from its panels.
template <class T>
void set_scores(Index rows, KeyRange range, Index dim, const T* x, Index x_stride, const T* panels, T* scores,
                Index stride) {
  for (Index start = range.begin; start < range.end; start += kPanel) {
    cpu::set_product<T>(rows, std::min(kPanel, range.end - start), dim, {x, x_stride, 1}, panels + start * dim, kPanel,
                        scores + (start - range.begin), stride);
  }
}

// Few queries, one after the other.
template <class T>
void attend_few(cpu::Scratch& scratch, const WindowAttentionForward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, keys = op.past + op.queries, column = head * dim;
  T* scores = scratch.take<T>(keys);
  for (Index j = 0; j < op.queries; ++j) {
    const Index row = sequence * op.queries + j;
    const auto range = seen_by(j, j + 1, op.past, op.window);
    const auto seen = [&](Matrix<const T> m) {
      return m.block(sequence * keys + range.begin, range.size(), column, dim);
    };
    const cpu::KeyValueRows<T> rows[] = {{seen(op.k), seen(op.v)}};
    const T log_sum = cpu::attend_row<T>(op.q.row(row) + column, rows, scores, op.out.row(row) + column);
    if (!op.log_sum.empty()) op.log_sum(row, head) = log_sum;
  }
}

template <class T>
void attend(cpu::Scratch& scratch, const WindowAttentionForward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, keys = op.past + op.queries, column = head * dim;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  const T* k_panels = packed_panels(scratch, keys, dim, op.k.row(sequence * keys) + column, op.k.stride);
  const T* v = packed_rows(scratch, keys, dim, op.v.row(sequence * keys) + column, op.v.stride);
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

template <class T>
void attend_backward(cpu::Scratch& scratch, const WindowAttentionBackward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, length = op.length, column = head * dim, base = sequence * length;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  const auto rows_of = [&](Matrix<const T> m) {
    return packed_rows(scratch, length, dim, m.row(base) + column, m.stride);
  };
  const auto panels_of = [&](Matrix<const T> m) {
    return packed_panels(scratch, length, dim, m.row(base) + column, m.stride);
  };
  const T *q = rows_of(op.q), *k = rows_of(op.k), *d_out = rows_of(op.d_out);
  const T *k_panels = panels_of(op.k), *v_panels = panels_of(op.v);
  T* d_k = scratch.take<T>(length * dim);
  T* d_v = scratch.take<T>(length * dim);
  std::fill_n(d_k, length * dim, T(0));
  std::fill_n(d_v, length * dim, T(0));
  const Index stride = score_stride(length, op.window);
  T* weights = scratch.take<T>(kQueryBlock * stride);
  T* d_scores = scratch.take<T>(kQueryBlock * stride);
  for (Index first = 0; first < length; first += kQueryBlock) {
    const Index rows = std::min(kQueryBlock, length - first);
    const auto range = panels_seen_by(first, first + rows, 0, op.window);
    const Index columns = range.size();
    set_scores(rows, range, dim, q + first * dim, dim, k_panels, weights, stride);
    set_scores(rows, range, dim, d_out + first * dim, dim, v_panels, d_scores, stride);
    for (Index j = 0; j < rows; ++j) {
      const auto visible = seen_by(first + j, first + j + 1, 0, op.window);
      const Index begin = visible.begin - range.begin, end = visible.end - range.begin;
      T* weight = weights + j * stride;
      T* d_score = d_scores + j * stride;
      const T log_sum = op.log_sum(base + first + j, head);
      for (Index c = begin; c < end; ++c) weight[c] = weight[c] * scale - log_sum;
      cpu::exp(end - begin, weight + begin, weight + begin);
      std::fill(weight, weight + begin, T(0));
      std::fill(weight + end, weight + columns, T(0));
      const T mean = cpu::dot(dim, op.out.row(base + first + j) + column, d_out + (first + j) * dim);
      for (Index c = 0; c < columns; ++c) d_score[c] = weight[c] * (d_score[c] - mean) * scale;
    }
    cpu::set_product<T>(rows, dim, columns, {d_scores, stride, 1}, k + range.begin * dim, dim,
                        op.d_q.row(base + first) + column, op.d_q.stride);
    cpu::add_product<T>(columns, dim, rows, {d_scores, 1, stride}, q + first * dim, dim, d_k + range.begin * dim, dim);
    cpu::add_product<T>(columns, dim, rows, {weights, 1, stride}, d_out + first * dim, dim, d_v + range.begin * dim,
                        dim);
  }
  cpu::copy_block(length, dim, d_k, dim, op.d_k.row(base) + column, op.d_k.stride);
  cpu::copy_block(length, dim, d_v, dim, op.d_v.row(base) + column, op.d_v.stride);
}

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
  const Index heads = op.q.cols / op.head_dim;
  stream.pool().each(op.sequences * heads, [&](Index task, int thread) {
    cpu::Scratch scratch(stream, thread);
    attend_backward(scratch, op, task / heads, task % heads);
  });
}

template void run(cpu::Stream&, const WindowAttentionForward<float>&);
template void run(cpu::Stream&, const WindowAttentionForward<double>&);
template void run(cpu::Stream&, const WindowAttentionBackward<float>&);
template void run(cpu::Stream&, const WindowAttentionBackward<double>&);

}  // namespace essh
