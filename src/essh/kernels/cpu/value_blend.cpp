#include "essh/kernels/value_blend.h"

#include <cmath>

#include "essh/kernels/cpu/reduce.h"

namespace essh {
namespace {
template <class T>
T inverse_rms(const T* x, Index width, double eps) {
  return T(1) / std::sqrt(cpu::dot(width, x, x) / static_cast<T>(width) + static_cast<T>(eps));
}
}  // namespace

template <class T>
void run(cpu::Stream& stream, const ValueBlendForward<T>& op) {
  stream.pool().split(op.v0.rows, [&](Index begin, Index end, int) {
    for (Index r = begin; r < end; ++r) {
      for (Index k = 0; k < op.blend.size; ++k) {
        const T* v0 = op.v0.row(r) + k * op.width;
        T* v = op.v.row(r) + k * op.width;
        const T scale = (T(1) - op.blend[k]) + op.blend[k] * inverse_rms(v0, op.width, op.eps);
        for (Index p = 0; p < op.width; ++p) v[p] = scale * v0[p];
      }
    }
  });
}

template <class T>
void run(cpu::Stream& stream, const ValueBlendBackward<T>& op) {
  stream.pool().split(op.blend.size, [&](Index begin, Index end, int) {
    for (Index k = begin; k < end; ++k) {
      const T blend = op.blend[k];
      T d_blend = 0;
      for (Index r = 0; r < op.v0.rows; ++r) {
        const T* v0 = op.v0.row(r) + k * op.width;
        const T* d_v = op.d_v.row(r) + k * op.width;
        T* d_v0 = op.d_v0.row(r) + k * op.width;
        const T inverse = inverse_rms(v0, op.width, op.eps);
        const T along = cpu::dot(op.width, d_v, v0);
        d_blend += along * (inverse - T(1));
        const T scale = (T(1) - blend) + blend * inverse;
        const T shift = blend * inverse * inverse * inverse * along / static_cast<T>(op.width);
        for (Index p = 0; p < op.width; ++p) d_v0[p] = scale * d_v[p] - shift * v0[p];
      }
      op.d_blend[k] += d_blend;
    }
  });
}

template void run(cpu::Stream&, const ValueBlendForward<float>&);
template void run(cpu::Stream&, const ValueBlendForward<double>&);
template void run(cpu::Stream&, const ValueBlendBackward<float>&);
template void run(cpu::Stream&, const ValueBlendBackward<double>&);

}  // namespace essh
