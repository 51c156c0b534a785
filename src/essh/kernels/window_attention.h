#pragma once
#include "essh/device/stream.h"

namespace essh {

// Causal softmax attention over the last `window` positions, the current one included; a window of at least past +
// queries is full attention. Query row j of a sequence is at position past + j and sees key rows (past + j - window,
// past + j]. heads is a multiple of kv_heads, and query head h reads kv head h / (heads / kv_heads).
//
// A sequence's result does not depend on the other sequences of a launch, bit for bit.
template <class T>
struct WindowAttentionForward {
  Index sequences, queries, past;
  Index head_dim, window;
  Matrix<const T> q;        // (sequences * queries) x (heads * head_dim)
  Matrix<const T> k, v;     // (sequences * (past + queries)) x (kv_heads * head_dim)
  Matrix<T> out;            // (=) like q
  Matrix<Wide<T>> log_sum;  // (=) (sequences * queries) x heads, log of the softmax denominator; may be empty
};

// Requires past = 0.
template <class T>
struct WindowAttentionBackward {
  Index sequences, length;
  Index head_dim, window;
  Matrix<const T> q, k, v, out;
  Matrix<const Wide<T>> log_sum;
  Matrix<const T> d_out;
  Matrix<T> d_q, d_k, d_v;  // (=) d_k and d_v are summed over the query heads that share a kv head
};

template <class T>
void run(cpu::Stream&, const WindowAttentionForward<T>&);
template <class T>
void run(cuda::Stream&, const WindowAttentionForward<T>&);
template <class T>
void run(cpu::Stream&, const WindowAttentionBackward<T>&);
template <class T>
void run(cuda::Stream&, const WindowAttentionBackward<T>&);

}  // namespace essh
