#pragma once
#include "essh/device/stream.h"

namespace essh {

// Causal softmax attention over the last `window` positions, the current one included; a window of past + queries or
// more sees everything before. Query row j of a sequence stands at key row past + j and sees key rows
// (past + j - window, past + j]. The number of heads is a multiple of that of kv heads, and query head h reads kv head
// h / (heads / kv_heads).
//
// The result of a sequence does not depend on the other sequences of a launch, bit for bit.
template <class T>
struct WindowAttentionForward {
  Index sequences, queries, past;
  Index head_dim, window;
  Matrix<const T> q;        // (sequences * queries) x (heads * head_dim)
  Matrix<const T> k, v;     // (sequences * (past + queries)) x (kv_heads * head_dim)
  Matrix<T> out;            // (=) like q
  Matrix<Wide<T>> log_sum;  // (=) (sequences * queries) x heads, log of the softmax denominator; may be empty
};

// For past = 0.
template <class T>
struct WindowAttentionBackward {
  Index sequences, length;
  Index head_dim, window;
  Matrix<const T> q, k, v, out;
  Matrix<const Wide<T>> log_sum;
  Matrix<const T> d_out;
  Matrix<T> d_q, d_k, d_v;  // (=) those of k and v summed over the query heads that read them
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
