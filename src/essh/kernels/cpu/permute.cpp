#include "essh/kernels/permute.h"

#include <algorithm>

namespace essh {

template <class W>
void run(cpu::Stream& stream, const PermuteRows<W>& op) {
  stream.pool().split(op.to.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) std::copy_n(op.from.row(op.order[r]), op.to.cols, op.to.row(r));
  });
}

template <class W>
void run(cpu::Stream& stream, const PermuteColumns<W>& op) {
  stream.pool().split(op.to.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      const W* from = op.from.row(r);
      W* to = op.to.row(r);
      for (Index c = 0; c < op.to.cols; ++c) to[c] = from[op.order[c]];
    }
  });
}

template void run(cpu::Stream&, const PermuteRows<float>&);
template void run(cpu::Stream&, const PermuteRows<double>&);
template void run(cpu::Stream&, const PermuteColumns<float>&);
template void run(cpu::Stream&, const PermuteColumns<double>&);

}  // namespace essh
