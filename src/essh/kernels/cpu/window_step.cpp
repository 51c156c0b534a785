#include "essh/kernels/window_step.h"

#include "essh/kernels/cpu/attend_row.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const WindowStep<T>& op) {
  const Index width = op.q.cols, dim = op.head_dim, heads = width / dim;
  stream.pool().each(op.q.rows * heads, [&](Index task, int thread) {
    cpu::Scratch scratch(stream, thread);
    const Index b = task / heads, column = task % heads * dim;
    const Index slot = op.positions[b] % op.window, filled = std::min(op.positions[b] + 1, op.window);
    const auto keys = dense(op.keys.row(b), filled, width).block(0, filled, column, dim),
               values = dense(op.values.row(b), filled, width).block(0, filled, column, dim);
    std::copy_n(op.k.row(b) + column, dim, keys.row(slot));
    std::copy_n(op.v.row(b) + column, dim, values.row(slot));
    cpu::attend_row<T>(op.q.row(b) + column, keys, values, scratch.take<T>(filled), op.out.row(b) + column);
  });
}

template void run(cpu::Stream&, const WindowStep<float>&);
template void run(cpu::Stream&, const WindowStep<double>&);

}  // namespace essh
