#pragma once
#include "essh/device/stream.h"

namespace essh {

// v_k = ((1 - beta_k) + beta_k r_k) v0_k with r_k = 1 / sqrt(mean(v0_k^2) + eps) over the P columns of channel k.
template <class T>
struct ValueBlendForward {
  Matrix<const T> v0;           // tokens x (channels * width)
  Vector<const Wide<T>> blend;  // channels
  Matrix<T> v;                  // (=) may alias v0
  Index width;
  double eps;
};

template <class T>
struct ValueBlendBackward {
  Matrix<const T> v0;
  Vector<const Wide<T>> blend;
  Matrix<const T> d_v;
  Matrix<T> d_v0;           // (=) may alias d_v
  Vector<Wide<T>> d_blend;  // (+=)
  Index width;
  double eps;
};

template <class T>
void run(cpu::Stream&, const ValueBlendForward<T>&);
template <class T>
void run(cuda::Stream&, const ValueBlendForward<T>&);
template <class T>
void run(cpu::Stream&, const ValueBlendBackward<T>&);
template <class T>
void run(cuda::Stream&, const ValueBlendBackward<T>&);

}  // namespace essh
