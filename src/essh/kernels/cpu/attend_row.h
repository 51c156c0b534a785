#pragma once
#include <algorithm>
#include <cmath>
#include <span>

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

// Starts to load one head's columns of rows [begin, end) of a matrix, as far as there are such rows.
template <class T>
void prefetch_rows(Matrix<const T> m, Index begin, Index end) {
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(T));
  for (Index r = begin; r < std::min(end, m.rows); ++r) {
    for (Index c = 0; c < m.cols; c += kLine) __builtin_prefetch(m.row(r) + c);
  }
}

// Keys and values of consecutive positions, one head's columns of each.
template <class T>
struct KeyValueRows {
  Matrix<const T> keys, values;
};

// out = the attention of one query over the rows of all pieces, in order; the division into pieces does not change a
// bit. `scores` has room for one number per row. Returns the log of the softmax denominator.
template <class T>
T attend_row(const T* q, std::span<const KeyValueRows<T>> pieces, T* scores, T* out) {
  constexpr Index kAhead = 16, kBlock = 8;
  const Index dim = pieces[0].keys.cols;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  Index count = 0;
  for (const auto& [keys, values] : pieces) {
    for (Index r = 0; r < keys.rows; ++r) {
      prefetch_rows(keys, r + kAhead, r + kAhead + 1);
      scores[count++] = dot(dim, q, keys.row(r));
    }
  }
  const T log_sum = softmax_row(scores, count, 0, count, scale);
  std::fill_n(out, dim, T(0));
  for (const auto& [keys, values] : pieces) {
    for (Index r = 0; r < values.rows; r += kBlock) {
      const Index rows = std::min(kBlock, values.rows - r);
      prefetch_rows(values, r + kAhead, r + kAhead + kBlock);
      add_product<T>(1, dim, rows, {scores, 0, 1}, values.row(r), values.stride, out, dim);
      scores += rows;
    }
  }
  return log_sum;
}

}  // namespace essh::cpu
