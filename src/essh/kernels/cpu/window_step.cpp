#include "essh/kernels/window_step.h"

#include "essh/kernels/cpu/attend_row.h"
#include "essh/kernels/reference/coded_rows.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const WindowStep<T>& op) {
  ESSH_ASSERT(op.rows == 0 || op.rows >= op.window);
  const Index width = op.k.cols, dim = op.head_dim, heads = op.q.cols / dim, group = heads / (width / dim);
  stream.pool().each(op.q.rows * heads, [&](Index task, int thread) {
    cpu::Scratch scratch(stream, thread);
    const Index b = task / heads, head = task % heads, column = head / group * dim, position = op.positions[b];
    const auto slot = [&](Index p) { return op.rows == 0 ? p : p % op.rows; };
    const T *key = op.k.row(b) + column, *value = op.v.row(b) + column;
    const Index past = std::min(position, op.window - 1);
    if (op.coded) {
      const Index bytes = coded_row_bytes(width, dim);
      T* const seen = scratch.take<T>(2 * past * dim);
      for (const bool is_key : {true, false}) {
        auto* const cache = reinterpret_cast<std::byte*>(is_key ? op.keys[b] : op.values[b]);
        const auto codes = [&](Index p) { return cache + slot(p) * bytes + column; };
        const auto scale = [&](Index p) { return cache + slot(p) * bytes + width + column / dim * 2; };
        if (head % group == 0) reference::store_coded_head(dim, is_key ? key : value, codes(position), scale(position));
        if (head == heads - 1) {
          auto* const row = cache + slot(position) * bytes;
          std::fill(row + width + width / dim * 2, row + bytes, std::byte{0});
        }
        for (Index i = 0; i < past; ++i)
          reference::load_coded_head(dim, codes(position - past + i), scale(position - past + i),
                                     seen + (i + (is_key ? 0 : past)) * dim);
      }
      const cpu::KeyValueRows<T> pieces[] = {{{seen, past, dim, dim}, {seen + past * dim, past, dim, dim}},
                                             {{key, 1, dim, dim}, {value, 1, dim, dim}}};
      cpu::attend_row<T>(op.q.row(b) + head * dim, pieces, scratch.take<T>(past + 1), op.out.row(b) + head * dim);
      return;
    }
    T *keys = op.keys[b] + column, *values = op.values[b] + column;
    // Heads of a group run concurrently: one writes the new row to the cache, none reads it from there.
    if (head % group == 0) {
      std::copy_n(key, dim, keys + slot(position) * width);
      std::copy_n(value, dim, values + slot(position) * width);
    }
    // The cached positions in order, one or two contiguous pieces, then the new one.
    const Index cached = past, first = slot(position - cached);
    const Index before_wrap = op.rows == 0 ? cached : std::min(cached, op.rows - first);
    const auto piece = [&](Index row, Index count) {
      return cpu::KeyValueRows<T>{{keys + row * width, count, dim, width}, {values + row * width, count, dim, width}};
    };
    const cpu::KeyValueRows<T> pieces[] = {
        piece(first, before_wrap), piece(0, cached - before_wrap), {{key, 1, dim, dim}, {value, 1, dim, dim}}};
    cpu::attend_row<T>(op.q.row(b) + head * dim, pieces, scratch.take<T>(cached + 1), op.out.row(b) + head * dim);
  });
}

template void run(cpu::Stream&, const WindowStep<float>&);
template void run(cpu::Stream&, const WindowStep<double>&);

}  // namespace essh
