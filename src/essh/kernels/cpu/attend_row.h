#pragma once
#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/reduce.h"
#include "essh/kernels/cpu/small_gemm.h"
#include "essh/kernels/cpu/vector_math.h"

namespace essh::cpu {

// Softmax over scores [begin, end) of `columns` scores times `scale`: weights (=) in place, zero elsewhere. Returns the
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

// out = the attention of one query over all rows of keys and values, one head's columns of each. Keys and values are
// read once, in their own order. `scores` has room for their rows. Returns the log of the softmax denominator.
template <class T>
T attend_row(const T* q, Matrix<const T> keys, Matrix<const T> values, T* scores, T* out) {
  const Index dim = keys.cols;
  const T scale = T(1) / std::sqrt(static_cast<T>(dim));
  for (Index r = 0; r < keys.rows; ++r) scores[r] = dot(dim, q, keys.row(r));
  const T log_sum = softmax_row(scores, keys.rows, 0, keys.rows, scale);
  set_product<T>(1, dim, keys.rows, {scores, 0, 1}, values.data, values.stride, out, dim);
  return log_sum;
}

}  // namespace essh::cpu
