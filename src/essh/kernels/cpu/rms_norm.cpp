#include "essh/kernels/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "essh/kernels/cpu/reduce.h"

namespace essh {

template <class T, class X>
void run(cpu::Stream& stream, const RmsNormForward<T, X>& op) {
  stream.pool().split(op.x.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      const X* x = op.x.row(r);
      T* y = op.y.row(r);
      const T squares = cpu::dot(op.x.cols, x, x);
      const T inverse = T(1) / std::sqrt(squares / static_cast<T>(op.x.cols) + static_cast<T>(op.eps));
      for (Index c = 0; c < op.x.cols; ++c) y[c] = op.gain[c] * (x[c] * inverse);
      if (!op.inverse_rms.empty()) op.inverse_rms[r] = inverse;
    }
  });
}

template <class T, class X>
void run(cpu::Stream& stream, const RmsNormBackward<T, X>& op) {
  const Index width = op.x.cols;
  stream.pool().split(op.x.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      const X* x = op.x.row(r);
      const T* d_y = op.d_y.row(r);
      X* d_x = op.d_x.row(r);
      const T along = cpu::sum_of<T>(width, [&](Index c) { return d_y[c] * op.gain[c] * x[c]; });
      const T inverse = op.inverse_rms[r];
      const T shift = along * inverse * inverse * inverse / static_cast<T>(width);
      for (Index c = 0; c < width; ++c) d_x[c] += inverse * op.gain[c] * d_y[c] - shift * x[c];
      if (!op.rounded.empty()) std::copy_n(d_x, width, op.rounded.row(r));
    }
  });
  if (op.d_gain.empty()) return;
  // Threads own column ranges, so that the order of the sum does not depend on their number.
  stream.pool().split(width, [&](Index begin, Index end, int) {
    for (Index r = 0; r < op.x.rows; ++r) {
      const X* x = op.x.row(r);
      const T* d_y = op.d_y.row(r);
      for (Index c = begin; c < end; ++c) op.d_gain[c] += d_y[c] * x[c] * op.inverse_rms[r];
    }
  });
}

template void run(cpu::Stream&, const RmsNormForward<float>&);
template void run(cpu::Stream&, const RmsNormForward<double>&);
template void run(cpu::Stream&, const RmsNormBackward<float>&);
template void run(cpu::Stream&, const RmsNormBackward<double>&);

}  // namespace essh
