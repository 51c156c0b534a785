#pragma once
#include "essh/device/stream.h"

namespace essh {

// to = from, row by row. `from` and `to` do not overlap.
template <class T>
struct Copy {
  Matrix<const T> from;
  Matrix<T> to;
};

template <class T>
struct Fill {
  Matrix<T> x;  // (=) value
  double value;
};

template <class T>
void run(cpu::Stream&, const Copy<T>&);
template <class T>
void run(cuda::Stream&, const Copy<T>&);
template <class T>
void run(cpu::Stream&, const Fill<T>&);
template <class T>
void run(cuda::Stream&, const Fill<T>&);

}  // namespace essh
