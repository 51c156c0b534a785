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

// Keys and values of consecutive positions, one head's columns of each.
template <class T>
struct KeyValueRows {
  Matrix<const T> keys, values;
};

// out = the attention of one query over the rows of all pieces, in order; the division into pieces does not change a
// bit. `scores` has room for one number per row. Returns the log of the softmax denominator.
template <class T>
T attend_row(const T* q, std::span<const KeyValueRows<T>> pieces, T* scores, T* out) {
  const Index dim = pieces[0].keys.cols;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  Index count = 0;
  for (const auto& [keys, values] : pieces) {
    for (Index r = 0; r < keys.rows; ++r) scores[count++] = dot(dim, q, keys.row(r));
  }
  const T log_sum = softmax_row(scores, count, 0, count, scale);
  std::fill_n(out, dim, T(0));
  for (const auto& [keys, values] : pieces) {
    add_product<T>(1, dim, keys.rows, {scores, 0, 1}, values.data, values.stride, out, dim);
    scores += keys.rows;
  }
  return log_sum;
}

}  // namespace essh::cpu
