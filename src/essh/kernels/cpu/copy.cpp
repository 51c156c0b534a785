#include "essh/kernels/copy.h"

#include <algorithm>

namespace essh {

template <class T>
void run(cpu::Stream& stream, const Copy<T>& op) {
  stream.pool().split(op.from.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) std::copy_n(op.from.row(r), op.from.cols, op.to.row(r));
  });
}

template <class T>
void run(cpu::Stream& stream, const Fill<T>& op) {
  stream.pool().split(op.x.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) std::fill_n(op.x.row(r), op.x.cols, static_cast<T>(op.value));
  });
}

template void run(cpu::Stream&, const Fill<float>&);
template void run(cpu::Stream&, const Fill<double>&);
template void run(cpu::Stream&, const Copy<float>&);
template void run(cpu::Stream&, const Copy<double>&);

}  // namespace essh
