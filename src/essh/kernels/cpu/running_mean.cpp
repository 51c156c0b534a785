#include "essh/kernels/running_mean.h"

namespace essh {

void run(cpu::Stream& stream, const RunningMean& op) {
  stream.pool().split(op.mean.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) op.mean[i] = op.memory * op.mean[i] + (1 - op.memory) * op.sums[i] / op.count;
  });
}

}  // namespace essh
