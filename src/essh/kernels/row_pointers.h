#pragma once
#include "essh/device/stream.h"

namespace essh {

// The addresses of the rows of a matrix, for kernels that take one pointer per sequence.
template <class T>
struct RowPointers {
  Matrix<T> matrix;
  Vector<T*> pointers;  // (=) one per row
};

template <class T>
void run(cpu::Stream&, const RowPointers<T>&);
template <class T>
void run(cuda::Stream&, const RowPointers<T>&);

}  // namespace essh
