#pragma once
#include "essh/device/stream.h"

namespace essh {

// Attention of one new token of each sequence over a ring of its last `window` keys and values. With p = positions[b],
// row p % window of the rings of sequence b takes k and v, and q attends over the rows filled so far, min(p + 1,
// window); softmax does not mind their order. Positions stay where the kernel runs, so a recorded launch serves every
// step.
template <class T>
struct WindowStep {
  Index head_dim, window;
  Matrix<const T> q, k, v;        // sequences x (heads * head_dim), rotated
  Matrix<T> keys, values;         // (in, out) sequences x (window * heads * head_dim), a ring in each row
  Vector<const Index> positions;  // tokens that each sequence had before this one
  Matrix<T> out;                  // (=) like q
};

template <class T>
void run(cpu::Stream&, const WindowStep<T>&);
template <class T>
void run(cuda::Stream&, const WindowStep<T>&);

}  // namespace essh
