#include "essh/kernels/column_squares.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const ColumnSquares<T>& op) {
  stream.pool().split(op.x.cols, [&](Index begin, Index end, int) {
    for (Index r = 0; r < op.x.rows; ++r) {
      const T* x = op.x.row(r);
      for (Index c = begin; c < end; ++c) op.sums[c] += static_cast<double>(x[c] * x[c]);
    }
  });
}

template void run(cpu::Stream&, const ColumnSquares<float>&);
template void run(cpu::Stream&, const ColumnSquares<double>&);

}  // namespace essh
