#pragma once
#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/reduce.h"
#include "essh/kernels/cpu/small_gemm.h"
#include "essh/kernels/cpu/vector_math.h"

namespace essh::cpu {

// Softmax in place over scale * scores[begin, end) of a row of `columns`: becomes weights, zero elsewhere. Returns the
// log of the denominator.
template <class T>
T softmax_row(T* scores, Index columns, Index begin, Index end, T scale) {
  const Index count = end - begin;
  T* seen = scores + begin;
  const T top = scale * largest(count, seen);
  for (Index c = 0; c < count; ++c) seen[c] = seen[c] * scale - top;
  exp(count, seen, seen);
  const T total = sum_of<T>(count, [seen](Index c) { return seen[c]; });
  const T inverse = T(1) / total;
  for (Index c = 0; c < count; ++c) seen[c] *= inverse;
  std::fill(scores, scores + begin, T(0));
  std::fill(scores + end, scores + columns, T(0));
  return top + std::log(total);
}

// Prefetches rows [begin, end) of a matrix, as far as it has them.
template <class T>
void prefetch_rows(Matrix<const T> m, Index begin, Index end) {
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(T));
  for (Index r = begin; r < std::min(end, m.rows); ++r) {
    for (Index c = 0; c < m.cols; c += kLine) __builtin_prefetch(m.row(r) + c);
  }
}

// out = the attention of one query over rows of keys and values, one head's columns of each. `scores` has room for one
// number per row. Returns the log of the softmax denominator.
template <class T>
T attend_row(const T* q, Matrix<const T> keys, Matrix<const T> values, T* scores, T* out) {
  constexpr Index kAhead = 16, kBlock = 8;
  const Index dim = keys.cols, count = keys.rows;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  for (Index r = 0; r < count; ++r) {
    prefetch_rows(keys, r + kAhead, r + kAhead + 1);
    scores[r] = dot(dim, q, keys.row(r));
  }
  const T log_sum = softmax_row(scores, count, 0, count, scale);
  std::fill_n(out, dim, T(0));
  for (Index r = 0; r < count; r += kBlock) {
    prefetch_rows(values, r + kAhead, r + kAhead + kBlock);
    add_product<T>(1, dim, std::min(kBlock, count - r), {scores + r, 0, 1}, values.row(r), values.stride, out, dim);
  }
  return log_sum;
}

}  // namespace essh::cpu
