#include "essh/kernels/selective_mix.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const SelectiveMix<T>& op) {
  run_parts(stream, op, op.write_logits, op.read_logits, op.clock_logits);
}

template void run(cpu::Stream&, const SelectiveMix<float>&);
template void run(cpu::Stream&, const SelectiveMix<double>&);

}  // namespace essh
