#pragma once
#include "essh/device/stream.h"

namespace essh {

// hidden = silu(gate) * up, silu(x) = x sigmoid(x).
template <class T>
struct SwigluForward {
  Matrix<const T> gate, up;              // tokens x n
  Matrix<T> hidden;                      // (=) may alias gate or up
  Vector<const std::int32_t> kept = {};  // columns kept in each row, the others are 0; empty means all
};

template <class T>
struct SwigluBackward {
  Matrix<const T> gate, up;
  Matrix<const T> d_hidden;
  Matrix<T> d_gate, d_up;  // (=) may alias gate and up; one of them may alias d_hidden
  Matrix<T> hidden = {};   // (=) silu(gate) * up recomputed; may be empty
};

template <class T>
void run(cpu::Stream&, const SwigluForward<T>&);
template <class T>
void run(cuda::Stream&, const SwigluForward<T>&);
template <class T>
void run(cpu::Stream&, const SwigluBackward<T>&);
template <class T>
void run(cuda::Stream&, const SwigluBackward<T>&);

}  // namespace essh
