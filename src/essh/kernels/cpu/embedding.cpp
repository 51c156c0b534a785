#include "essh/kernels/embedding.h"

#include <algorithm>

namespace essh {

namespace {

// x = the first `count` elements of a stored row.
template <class Stored, class T>
void widen_row(const std::byte* stored, Index count, T* x) {
  const auto* row = reinterpret_cast<const Stored*>(stored);
  for (Index i = 0; i < count; ++i) x[i] = static_cast<T>(static_cast<float>(row[i]));
}

}  // namespace

template <class T, class X>
void run(cpu::Stream& stream, const EmbeddingForward<T, X>& op) {
  stream.pool().split(op.tokens.size, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      const auto* stored = op.table.row(op.tokens[r]);
      switch (op.table.format) {
        case Format::BF16:
          widen_row<BFloat16>(stored, op.x.cols, op.x.row(r));
          break;
        case Format::F16:
          widen_row<Float16>(stored, op.x.cols, op.x.row(r));
          break;
        default:
          std::copy_n(op.table.template as<T>().row(op.tokens[r]), op.x.cols, op.x.row(r));
      }
    }
  });
}

template <class T>
void run(cpu::Stream& stream, const EmbeddingBackward<T>& op) {
  // Threads own column ranges: a token may occur in many rows, and its sum must keep their order.
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
