#pragma once
#include "essh/device/stream.h"
#include "essh/tensor/weight.h"

namespace essh {

// x[r] = table[tokens[r]]. Precondition: every token is inside the table; callers check tokens from outside. X, the
// type of x, is T or Wide<T>.
template <class T, class X = T>
struct EmbeddingForward {
  Vector<const std::int32_t> tokens;
  Weight table;  // vocabulary x width; on CUDA in T
  Matrix<X> x;   // (=)
};

template <class T>
struct EmbeddingBackward {
  Vector<const std::int32_t> tokens;
  Matrix<const T> d_x;
  Matrix<Wide<T>> d_table;  // (+=)
};

template <class T, class X>
void run(cpu::Stream&, const EmbeddingForward<T, X>&);
template <class T, class X>
void run(cuda::Stream&, const EmbeddingForward<T, X>&);
template <class T>
void run(cpu::Stream&, const EmbeddingBackward<T>&);
template <class T>
void run(cuda::Stream&, const EmbeddingBackward<T>&);

}  // namespace essh
