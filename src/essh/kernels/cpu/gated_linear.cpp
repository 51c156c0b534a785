#include "essh/kernels/gated_linear.h"

#include "essh/kernels/swiglu.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const GatedLinear<T>& op) {
  run(stream, op.both);
  const Index units = op.hidden.cols;
  run(stream, SwigluForward<T>{.gate = op.both.y.left(units),
                               .up = op.both.y.block(0, op.hidden.rows, units, units),
                               .hidden = op.hidden,
                               .kept = op.kept});
}

template void run(cpu::Stream&, const GatedLinear<float>&);
template void run(cpu::Stream&, const GatedLinear<double>&);

}  // namespace essh
