#include "essh/kernels/reference/coded_rows.h"

#include <algorithm>

namespace essh {

template <class T>
void run(cpu::Stream& stream, const StoreCodedRows<T>& op) {
  const Index columns = op.from.cols, bytes = coded_row_bytes(columns, op.head_dim), heads = columns / op.head_dim;
  stream.pool().split(op.from.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      auto* row = op.to + r * bytes;
      for (Index h = 0; h < heads; ++h)
        reference::store_coded_head(op.head_dim, op.from.row(r) + h * op.head_dim, row + h * op.head_dim,
                                    row + columns + h * 2);
      std::fill(row + columns + heads * 2, row + bytes, std::byte{0});
    }
  });
}

template <class T>
void run(cpu::Stream& stream, const LoadCodedRows<T>& op) {
  const Index columns = op.to.cols, bytes = coded_row_bytes(columns, op.head_dim), heads = columns / op.head_dim;
  stream.pool().split(op.to.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      const auto* row = op.from + r * bytes;
      for (Index h = 0; h < heads; ++h)
        reference::load_coded_head(op.head_dim, row + h * op.head_dim, row + columns + h * 2,
                                   op.to.row(r) + h * op.head_dim);
    }
  });
}

template void run(cpu::Stream&, const StoreCodedRows<float>&);
template void run(cpu::Stream&, const StoreCodedRows<double>&);
template void run(cpu::Stream&, const LoadCodedRows<float>&);
template void run(cpu::Stream&, const LoadCodedRows<double>&);

}  // namespace essh
