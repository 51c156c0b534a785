#include "essh/kernels/normed_linear.h"

namespace essh {

template <class T, class X>
void run(cpu::Stream& stream, const NormedLinear<T, X>& op) {
  run_parts(stream, op);
}
template <class T, class X>
void run(cpu::Stream& stream, const NormedGatedLinear<T, X>& op) {
  run_parts(stream, op);
}

template void run(cpu::Stream&, const NormedLinear<float>&);
template void run(cpu::Stream&, const NormedLinear<double>&);
template void run(cpu::Stream&, const NormedGatedLinear<float>&);
template void run(cpu::Stream&, const NormedGatedLinear<double>&);

}  // namespace essh
