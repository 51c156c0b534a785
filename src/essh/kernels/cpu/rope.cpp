#include "essh/kernels/rope.h"

#include <cmath>

#include "essh/kernels/cpu/vector_math.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const Rope<T>& op) {
  const Index half = op.head_dim / 2;
  stream.pool().split(op.x.rows, [&](Index begin, Index end, int thread) {
    cpu::Scratch scratch(stream, thread);
    T* cosine = scratch.take<T>(half);
    T* sine = scratch.take<T>(half);
    double* rate = scratch.take<double>(half);
    double* angle = scratch.take<double>(half);
    for (Index i = 0; i < half; ++i)
      rate[i] = std::pow(op.theta, -2.0 * static_cast<double>(i) / static_cast<double>(op.head_dim));
    for (Index r = begin; r < end; ++r) {
      const Index first = op.first.empty() ? 0 : op.first[r / op.length];
      const Index position = first + r % op.length;
      const auto turns = static_cast<double>(op.rotation == Rotation::Forward ? position : -position);
      for (Index i = 0; i < half; ++i) angle[i] = turns * rate[i];
      cpu::cos_sin(half, angle, cosine, sine);
      for (T* head = op.x.row(r); head < op.x.row(r) + op.x.cols; head += op.head_dim) {
        for (Index i = 0; i < half; ++i) {
          const T low = head[i], high = head[i + half];
          head[i] = low * cosine[i] - high * sine[i];
          head[i + half] = high * cosine[i] + low * sine[i];
        }
      }
    }
  });
}

template void run(cpu::Stream&, const Rope<float>&);
template void run(cpu::Stream&, const Rope<double>&);

}  // namespace essh
