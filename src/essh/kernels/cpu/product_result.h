#pragma once
#include <cmath>

#include "essh/tensor/matrix.h"

namespace essh::cpu {

// Where the sums of a product go: y = scale * sum + beta * addend. `addend` may be y itself; empty for zero.
template <class T>
struct ProductResult {
  Matrix<T> y;
  T scale = 1;
  T beta = 0;
  Matrix<const T> addend = {};

  bool is_plain() const { return scale == T(1) && addend.empty(); }
  // The first sums of a row may wait in y for the others.
  bool can_hold_sums() const { return addend.data != y.data; }

  // Fused in so many words, for contraction could fuse the other product. `sums` may be the elements of y.
  void finish(Index row, Index column, Index count, const T* sums) const {
    T* to = y.row(row) + column;
    if (addend.empty()) {
      for (Index i = 0; i < count; ++i) to[i] = scale * sums[i];
      return;
    }
    const T* from = addend.row(row) + column;
    for (Index i = 0; i < count; ++i) to[i] = multiply_add(scale, sums[i], beta * from[i]);
  }

 private:
  static T multiply_add(T a, T b, T c) {
#ifdef __FP_FAST_FMAF
    return std::fma(a, b, c);
#else
    return a * b + c;
#endif
  }
};

}  // namespace essh::cpu
