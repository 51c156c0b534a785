#include "essh/kernels/add_scaled.h"

#include <cmath>

namespace essh {
namespace {

template <class E>
void add_scaled(cpu::Stream& stream, const AddScaled<E>& op) {
  stream.pool().split(op.sum.size, [&](Index begin, Index end, int) {
    for (Index i = begin; i < end; ++i) op.sum[i] = E(std::fma(op.factor, op.y[i], op.x[i]));
  });
}

}  // namespace

void run(cpu::Stream& stream, const AddScaled<float>& op) {
  add_scaled(stream, op);
}
void run(cpu::Stream& stream, const AddScaled<BFloat16>& op) {
  add_scaled(stream, op);
}

}  // namespace essh
