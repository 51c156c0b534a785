#pragma once
#include "essh/device/stream.h"

namespace essh {

// sums[c] += sum over rows of x(r, c)^2.
template <class T>
struct ColumnSquares {
  Matrix<const T> x;
  Vector<double> sums;  // (+=)
};

template <class T>
void run(cpu::Stream&, const ColumnSquares<T>&);
template <class T>
void run(cuda::Stream&, const ColumnSquares<T>&);

}  // namespace essh
