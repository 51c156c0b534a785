#pragma once
#include <cmath>

#include "essh/tensor/matrix.h"

namespace essh::cpu {

// The epilogue of a product: y = scale * sum + beta * addend. `addend` may be y itself; empty means zero.
template <class T>
struct ProductResult {
  Matrix<T> y;
  T scale = 1;
  T beta = 0;
  Matrix<const T> addend = {};

  bool is_plain() const { return scale == T(1) && addend.empty(); }
  // Whether partial sums may be stored in y.
  bool can_hold_sums() const { return addend.data != y.data; }

  // An explicit fused multiply-add: contraction could fuse the other product. `sums` may alias y.
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
