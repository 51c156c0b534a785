#include "essh/kernels/row_pointers.h"

namespace essh {

template <class T>
void run(cpu::Stream&, const RowPointers<T>& op) {
  for (Index r = 0; r < op.matrix.rows; ++r) op.pointers[r] = op.matrix.row(r);
}

template void run(cpu::Stream&, const RowPointers<float>&);
template void run(cpu::Stream&, const RowPointers<double>&);

}  // namespace essh
