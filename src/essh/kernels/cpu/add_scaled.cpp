#include "essh/kernels/add_scaled.h"

#include <cmath>

namespace essh {

void run(cpu::Stream& stream, const AddScaled<float>& op) {
  stream.pool().split(op.sum.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) op.sum[i] = std::fma(op.factor, op.y[i], op.x[i]);
  });
}

}  // namespace essh
