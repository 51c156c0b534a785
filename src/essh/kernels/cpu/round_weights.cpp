#include "essh/kernels/round_weights.h"

namespace essh {

void run(cpu::Stream& stream, const RoundWeights& op) {
  stream.pool().split(op.from.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) op.to[i] = BFloat16(op.from[i]);
  });
}

}  // namespace essh
