#pragma once
#include "essh/device/stream.h"

namespace essh {

// From logits without bias to write = 2 sigmoid(s + b), read = 2 sigmoid(s + b), clock = softplus(s + b), in place.
template <class T>
struct GatesForward {
  Matrix<T> write, read, clock;                       // tokens x (channels * modes), logits in, gates out
  Vector<const T> write_bias, read_bias, clock_bias;  // channels * modes
};

// From gradients of the gates to gradients of the logits, in place; their sums over tokens are added to the biases'.
template <class T>
struct GatesBackward {
  Matrix<const T> write, read, clock;                 // the gates
  Matrix<T> d_write, d_read, d_clock;                 // gate gradients in, logit gradients out
  Vector<T> d_write_bias, d_read_bias, d_clock_bias;  // (+=)
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
