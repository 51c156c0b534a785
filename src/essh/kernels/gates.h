#pragma once
#include "essh/device/stream.h"

namespace essh {

// write = 2 sigmoid(s + b), read = 2 sigmoid(s + b), clock = softplus(s + b), from logits s without bias.
template <class T>
struct GatesForward {
  Matrix<const T> write_logits, read_logits, clock_logits;  // tokens x (channels * modes)
  Vector<const Wide<T>> write_bias, read_bias, clock_bias;  // channels * modes
  Matrix<Wide<T>> write, read, clock;                       // (=) each may alias its logits
};

// Gradients of the logits from those of the gates; their sums over tokens are added to d_*_bias.
template <class T>
struct GatesBackward {
  Matrix<const Wide<T>> write, read, clock;
  Matrix<const Wide<T>> d_write, d_read, d_clock;
  Matrix<T> d_write_logits, d_read_logits, d_clock_logits;  // (=) each may alias the gradient of its gate
  Vector<Wide<T>> d_write_bias, d_read_bias, d_clock_bias;  // (+=)
};

template <class T>
void run(cpu::Stream&, const GatesForward<T>&);
template <class T>
void run(cuda::Stream&, const GatesForward<T>&);
template <class T>
void run(cpu::Stream&, const GatesBackward<T>&);
template <class T>
void run(cuda::Stream&, const GatesBackward<T>&);

}  // namespace essh
