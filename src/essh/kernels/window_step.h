#pragma once
#include "essh/kernels/coded_rows.h"

namespace essh {

// Attention of one new token per sequence over the keys and values of its last `window` positions, the new one
// included. With p = positions[b], k and v are written to the caches of sequence b as position p, and q attends to the
// last min(p + 1, window) positions in order.
//
// A sequence's result is a function of its q, k, v, cached positions and p alone, bit for bit: neither the other
// sequences of the launch nor the placement in a ring changes it. Pointers and positions are read on the device, so a
// recorded launch may be replayed with other values, as long as positions stay below `longest`.
template <class T>
struct WindowStep {
  Index head_dim, window;
  Index rows;            // rows of a ring, >= window: position p lies in row p % rows; 0: position p lies in row p
  Index longest;         // bound on positions[b] + 1 in this launch and its replays, or window: sizes the grid
  Matrix<const T> q;     // sequences x (heads * head_dim), rotated
  Matrix<const T> k, v;  // sequences x (kv_heads * head_dim); head h reads kv head h / (heads / kv_heads)
  Vector<T*const> keys, values;   // (in, out) one cache per sequence, rows x (kv_heads * head_dim), dense
  Vector<const Index> positions;  // tokens in each sequence before this one
  Matrix<T> out;                  // (=) like q
  // The caches are rows of coded_rows.h, aligned to 16 bytes. The new position is attended to as it is and stored in
  // eight bits. On CUDA head_dim is a multiple of 8.
  bool coded = false;
};

template <class T>
void run(cpu::Stream&, const WindowStep<T>&);
template <class T>
void run(cuda::Stream&, const WindowStep<T>&);

}  // namespace essh
