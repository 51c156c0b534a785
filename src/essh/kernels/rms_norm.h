#pragma once
#include "essh/device/stream.h"

namespace essh {

// y = gain * x / rms(x), rms(x) = sqrt(mean(x^2) + eps), row by row. y may alias x.
template <class T>
struct RmsNormForward {
  Matrix<const T> x;            // tokens x width
  Vector<const Wide<T>> gain;   // width
  Matrix<T> y;                  // (=)
  Vector<Wide<T>> inverse_rms;  // (=) tokens, kept for backward; may be empty
  double eps;
};

// d_x += the gradient through the norm; d_gain += its sum over tokens. d_gain may be empty.
template <class T>
struct RmsNormBackward {
  Matrix<const T> x;
  Vector<const Wide<T>> gain;
  Vector<const Wide<T>> inverse_rms;
  Matrix<const T> d_y;
  Matrix<T> d_x;           // (+=)
  Vector<Wide<T>> d_gain;  // (+=)
};

template <class T>
void run(cpu::Stream&, const RmsNormForward<T>&);
template <class T>
void run(cuda::Stream&, const RmsNormForward<T>&);
template <class T>
void run(cpu::Stream&, const RmsNormBackward<T>&);
template <class T>
void run(cuda::Stream&, const RmsNormBackward<T>&);

}  // namespace essh
