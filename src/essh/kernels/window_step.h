#pragma once
#include "essh/device/stream.h"

namespace essh {

// Attention of one new token of each sequence over the keys and values of its last `window` positions, the new one
// included. With p = positions[b], the caches of sequence b take k and v as position p, and q attends over the last
// min(p + 1, window) positions in their order.
//
// The result of a sequence is a function of its q, k, v, cached positions and p alone, bit for bit: neither the other
// sequences of the launch nor the place of a position in a ring changes it. Pointers and positions are read where the
// kernel runs, so a recorded launch may be replayed with others, as long as positions stay below `longest`.
template <class T>
struct WindowStep {
  Index head_dim, window;
  Index rows;                     // of a ring, >= window: position p lies in row p % rows; 0: position p lies in row p
  Index longest;                  // bound on positions[b] + 1 in this launch and its replays, or window: sizes the grid
  Matrix<const T> q;              // sequences x (heads * head_dim), rotated
  Matrix<const T> k, v;           // sequences x (kv_heads * head_dim); head h reads kv head h / (heads / kv_heads)
  Vector<T*const> keys, values;   // (in, out) one cache per sequence, rows x (kv_heads * head_dim), dense
  Vector<const Index> positions;  // tokens each sequence had before this one
  Matrix<T> out;                  // (=) like q
};

template <class T>
void run(cpu::Stream&, const WindowStep<T>&);
template <class T>
void run(cuda::Stream&, const WindowStep<T>&);

}  // namespace essh
