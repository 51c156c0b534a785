#pragma once
#include "essh/device/stream.h"

namespace essh {

// y = gain * x / rms(x), rms(x) = sqrt(mean(x^2) + eps), row by row. X, the type of x, is T or Wide<T>. y may alias x.
template <class T, class X = T>
struct RmsNormForward {
  Matrix<const X> x;            // tokens x width
  Vector<const Wide<T>> gain;   // width
  Matrix<T> y;                  // (=)
  Vector<Wide<T>> inverse_rms;  // (=) tokens, kept for backward; may be empty
  double eps;
};

// d_x += the gradient through the norm; d_gain += its sum over tokens. d_gain may be empty.
template <class T, class X = T>
struct RmsNormBackward {
  Matrix<const X> x;
  Vector<const Wide<T>> gain;
  Vector<const Wide<T>> inverse_rms;
  Matrix<const T> d_y;
  Matrix<X> d_x;           // (+=)
  Vector<Wide<T>> d_gain;  // (+=)
  Matrix<T> rounded = {};  // (=) a copy of the new d_x in T, an operand of products; may be empty
};

template <class T, class X>
void run(cpu::Stream&, const RmsNormForward<T, X>&);
template <class T, class X>
void run(cuda::Stream&, const RmsNormForward<T, X>&);
template <class T, class X>
void run(cpu::Stream&, const RmsNormBackward<T, X>&);
template <class T, class X>
void run(cuda::Stream&, const RmsNormBackward<T, X>&);

}  // namespace essh
