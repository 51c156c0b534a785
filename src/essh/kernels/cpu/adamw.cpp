#include "essh/kernels/adamw.h"

#include <cmath>

namespace essh {

template <class W>
void run(cpu::Stream& stream, const AdamW<W>& op) {
  const W beta1 = static_cast<W>(op.beta1), beta2 = static_cast<W>(op.beta2), eps = static_cast<W>(op.eps),
          clip = static_cast<W>(op.clip);
  const W rate = static_cast<W>(op.rate), decay = static_cast<W>(op.rate * op.decay);
  const W first_scale = static_cast<W>(1 / (1 - std::pow(op.beta1, static_cast<double>(op.step))));
  const W second_scale = static_cast<W>(1 / (1 - std::pow(op.beta2, static_cast<double>(op.step))));
  stream.pool().split(op.weight.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) {
      const W g = clip * op.gradient[i];
      const W first = op.first[i] = beta1 * op.first[i] + (W(1) - beta1) * g;
      const W second = op.second[i] = beta2 * op.second[i] + (W(1) - beta2) * g * g;
      op.weight[i] -= rate * (first * first_scale) / (std::sqrt(second * second_scale) + eps) + decay * op.weight[i];
    }
    if (op.rounded.empty()) return;
    for (Index i = begin; i < end; ++i) op.rounded[i] = BFloat16(static_cast<float>(op.weight[i]));
  });
}

template void run(cpu::Stream&, const AdamW<float>&);
template void run(cpu::Stream&, const AdamW<double>&);

}  // namespace essh
