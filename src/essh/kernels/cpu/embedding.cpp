#include "essh/kernels/embedding.h"

#include <algorithm>

namespace essh {

template <class T>
void run(cpu::Stream& stream, const EmbeddingForward<T>& op) {
  stream.pool().split(op.tokens.size, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) std::copy_n(op.table.row(op.tokens[r]), op.x.cols, op.x.row(r));
  });
}

template <class T>
void run(cpu::Stream& stream, const EmbeddingBackward<T>& op) {
  // Column ranges: a token may occur many times, and its sum keeps the order of the rows.
  stream.pool().split(op.d_x.cols, [&](Index begin, Index end, int) {
    for (Index r = 0; r < op.tokens.size; ++r) {
      const T* d_x = op.d_x.row(r);
      Wide<T>* d_row = op.d_table.row(op.tokens[r]);
      for (Index c = begin; c < end; ++c) d_row[c] += d_x[c];
    }
  });
}

template void run(cpu::Stream&, const EmbeddingForward<float>&);
template void run(cpu::Stream&, const EmbeddingForward<double>&);
template void run(cpu::Stream&, const EmbeddingBackward<float>&);
template void run(cpu::Stream&, const EmbeddingBackward<double>&);

}  // namespace essh
