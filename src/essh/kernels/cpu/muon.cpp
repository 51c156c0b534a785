#include "essh/kernels/muon.h"

#include <cmath>

namespace essh {

template <class W>
void run(cpu::Stream& stream, const MuonMomentum<W>& op) {
  const W beta = static_cast<W>(op.beta), clip = static_cast<W>(op.clip);
  stream.pool().split(op.momentum.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) {
      const W g = (W(1) - beta) * (clip * op.gradient[i]);
      const W momentum = op.momentum[i] = beta * op.momentum[i] + g;
      op.direction[i] = beta * momentum + g;
    }
  });
}

template <class T>
void run(cpu::Stream& stream, const MuonNormalise<T>& op) {
  const T scale = static_cast<T>(*op.squares > 0 ? 1 / std::sqrt(*op.squares) : 0);
  stream.pool().split(op.from.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) op.to[i] = scale * op.from[i];
  });
}

template <class T>
void run(cpu::Stream& stream, const MuonUpdate<T>& op) {
  const T rate = static_cast<T>(op.rate), decay = static_cast<T>(op.rate * op.decay);
  stream.pool().split(op.weight.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) op.weight[i] -= rate * op.direction[i] + decay * op.weight[i];
    if (op.rounded.empty()) return;
    for (Index i = begin; i < end; ++i) op.rounded[i] = BFloat16(static_cast<float>(op.weight[i]));
  });
}

template void run(cpu::Stream&, const MuonMomentum<float>&);
template void run(cpu::Stream&, const MuonMomentum<double>&);
template void run(cpu::Stream&, const MuonNormalise<float>&);
template void run(cpu::Stream&, const MuonNormalise<double>&);
template void run(cpu::Stream&, const MuonUpdate<float>&);
template void run(cpu::Stream&, const MuonUpdate<double>&);

}  // namespace essh
