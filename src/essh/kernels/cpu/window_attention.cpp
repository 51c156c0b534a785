#include "essh/kernels/window_attention.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/small_gemm.h"
#include "essh/kernels/cpu/vector_math.h"

namespace essh {
namespace {

// Rows of queries whose scores against a whole window stay in the second-level cache.
constexpr Index kQueryBlock = 32;

// Key rows that some query of [first, last) sees.
struct KeyRange {
  Index begin, end;
  Index size() const { return end - begin; }
};
KeyRange seen_by(Index first, Index last, Index past, Index window) {
  return {std::max<Index>(0, past + first - window + 1), past + last};
}

// One head's softmax over scores: weights (=) in place, returns log of the sum. Columns outside [begin, end) become
// zero.
template <class T>
T softmax_row(T* scores, Index columns, Index begin, Index end) {
  const T largest = *std::max_element(scores + begin, scores + end);
  for (Index c = begin; c < end; ++c) scores[c] -= largest;
  cpu::exp(end - begin, scores + begin, scores + begin);
  T total = 0;
  for (Index c = begin; c < end; ++c) total += scores[c];
  const T inverse = T(1) / total;
  for (Index c = begin; c < end; ++c) scores[c] *= inverse;
  std::fill(scores, scores + begin, T(0));
  std::fill(scores + end, scores + columns, T(0));
  return largest + std::log(total);
}

// Few queries: read keys and values once each, in their own order.
template <class T>
void attend_few(cpu::Scratch& scratch, const WindowAttentionForward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, keys = op.past + op.queries, column = head * dim;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  T* scores = scratch.take<T>(keys);
  for (Index j = 0; j < op.queries; ++j) {
    const auto range = seen_by(j, j + 1, op.past, op.window);
    const T* q = op.q.row(sequence * op.queries + j) + column;
    for (Index r = range.begin; r < range.end; ++r) {
      const T* k = op.k.row(sequence * keys + r) + column;
      T sum = 0;
      for (Index i = 0; i < dim; ++i) sum += q[i] * k[i];
      scores[r] = sum * scale;
    }
    const T log_sum = softmax_row(scores, range.end, range.begin, range.end);
    T* out = op.out.row(sequence * op.queries + j) + column;
    std::fill_n(out, dim, T(0));
    for (Index r = range.begin; r < range.end; ++r) {
      const T* v = op.v.row(sequence * keys + r) + column;
      for (Index i = 0; i < dim; ++i) out[i] += scores[r] * v[i];
    }
    if (!op.log_sum.empty()) op.log_sum(sequence * op.queries + j, head) = log_sum;
  }
}

template <class T>
void attend(cpu::Scratch& scratch, const WindowAttentionForward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, keys = op.past + op.queries, column = head * dim;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  T* k_transposed = scratch.take<T>(dim * keys);
  cpu::transpose(keys, dim, op.k.row(sequence * keys) + column, op.k.stride, k_transposed, keys);
  T* weights = scratch.take<T>(kQueryBlock * std::min(keys, op.window + kQueryBlock));
  for (Index first = 0; first < op.queries; first += kQueryBlock) {
    const Index rows = std::min(kQueryBlock, op.queries - first);
    const auto range = seen_by(first, first + rows, op.past, op.window);
    const Index columns = range.size();
    const T* q = op.q.row(sequence * op.queries + first) + column;
    std::fill_n(weights, rows * columns, T(0));
    cpu::add_product<T>(rows, columns, dim, {q, op.q.stride, 1}, k_transposed + range.begin, keys, weights, columns);
    for (Index j = 0; j < rows; ++j) {
      T* row = weights + j * columns;
      for (Index c = 0; c < columns; ++c) row[c] *= scale;
      const auto visible = seen_by(first + j, first + j + 1, op.past, op.window);
      const T log_sum = softmax_row(row, columns, visible.begin - range.begin, visible.end - range.begin);
      if (!op.log_sum.empty()) op.log_sum(sequence * op.queries + first + j, head) = log_sum;
    }
    T* out = op.out.row(sequence * op.queries + first) + column;
    for (Index j = 0; j < rows; ++j) std::fill_n(out + j * op.out.stride, dim, T(0));
    cpu::add_product<T>(rows, dim, columns, {weights, columns, 1}, op.v.row(sequence * keys + range.begin) + column,
                        op.v.stride, out, op.out.stride);
  }
}

template <class T>
void attend_backward(cpu::Scratch& scratch, const WindowAttentionBackward<T>& op, Index sequence, Index head) {
  const Index dim = op.head_dim, length = op.length, column = head * dim, base = sequence * length;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  T* k_transposed = scratch.take<T>(dim * length);
  T* v_transposed = scratch.take<T>(dim * length);
  cpu::transpose(length, dim, op.k.row(base) + column, op.k.stride, k_transposed, length);
  cpu::transpose(length, dim, op.v.row(base) + column, op.v.stride, v_transposed, length);
  for (Index r = 0; r < length; ++r) {
    std::fill_n(op.d_q.row(base + r) + column, dim, T(0));
    std::fill_n(op.d_k.row(base + r) + column, dim, T(0));
    std::fill_n(op.d_v.row(base + r) + column, dim, T(0));
  }
  const Index widest = kQueryBlock * std::min(length, op.window + kQueryBlock);
  T* weights = scratch.take<T>(widest);
  T* d_scores = scratch.take<T>(widest);
  for (Index first = 0; first < length; first += kQueryBlock) {
    const Index rows = std::min(kQueryBlock, length - first);
    const auto range = seen_by(first, first + rows, 0, op.window);
    const Index columns = range.size();
    const T* q = op.q.row(base + first) + column;
    const T* d_out = op.d_out.row(base + first) + column;
    std::fill_n(weights, rows * columns, T(0));
    std::fill_n(d_scores, rows * columns, T(0));
    cpu::add_product<T>(rows, columns, dim, {q, op.q.stride, 1}, k_transposed + range.begin, length, weights, columns);
    cpu::add_product<T>(rows, columns, dim, {d_out, op.d_out.stride, 1}, v_transposed + range.begin, length, d_scores,
                        columns);
    for (Index j = 0; j < rows; ++j) {
      const auto visible = seen_by(first + j, first + j + 1, 0, op.window);
      const Index begin = visible.begin - range.begin, end = visible.end - range.begin;
      T* weight = weights + j * columns;
      T* d_score = d_scores + j * columns;
      const T log_sum = op.log_sum(base + first + j, head);
      for (Index c = begin; c < end; ++c) weight[c] = weight[c] * scale - log_sum;
      cpu::exp(end - begin, weight + begin, weight + begin);
      std::fill(weight, weight + begin, T(0));
      std::fill(weight + end, weight + columns, T(0));
      const T* out = op.out.row(base + first + j) + column;
      T mean = 0;
      for (Index i = 0; i < dim; ++i) mean += out[i] * d_out[j * op.d_out.stride + i];
      for (Index c = 0; c < columns; ++c) d_score[c] = weight[c] * (d_score[c] - mean) * scale;
    }
    cpu::add_product<T>(rows, dim, columns, {d_scores, columns, 1}, op.k.row(base + range.begin) + column, op.k.stride,
                        op.d_q.row(base + first) + column, op.d_q.stride);
    cpu::add_product<T>(columns, dim, rows, {d_scores, 1, columns}, q, op.q.stride,
                        op.d_k.row(base + range.begin) + column, op.d_k.stride);
    cpu::add_product<T>(columns, dim, rows, {weights, 1, columns}, d_out, op.d_out.stride,
                        op.d_v.row(base + range.begin) + column, op.d_v.stride);
  }
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
