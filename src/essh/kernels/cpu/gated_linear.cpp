#include "essh/kernels/gated_linear.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const GatedLinear<T>& op) {
  run_parts(stream, op);
}

template void run(cpu::Stream&, const GatedLinear<float>&);
template void run(cpu::Stream&, const GatedLinear<double>&);

}  // namespace essh
