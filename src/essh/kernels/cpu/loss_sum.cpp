#include "essh/kernels/loss_sum.h"

namespace essh {

template <class W>
void run(cpu::Stream&, const LossSum<W>& op) {
  for (Index r = 0; r < op.label.size; ++r) {
    op.totals[0] += static_cast<double>(op.label[r]);
    if (!op.divergence.empty()) op.totals[1] += static_cast<double>(op.divergence[r]);
    op.totals[2] += op.targets[r] != kIgnoredTarget;
  }
}

template void run(cpu::Stream&, const LossSum<float>&);
template void run(cpu::Stream&, const LossSum<double>&);

}  // namespace essh
