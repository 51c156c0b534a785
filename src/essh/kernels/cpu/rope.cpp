#include "essh/kernels/rope.h"

#include <cmath>

namespace essh {

template <class T>
void run(cpu::Stream& stream, const Rope<T>& op) {
  const Index half = op.head_dim / 2;
  stream.pool().split(op.x.rows, [&](Index begin, Index end, int thread) {
    cpu::Scratch scratch(stream, thread);
    T* cosine = scratch.take<T>(half);
    T* sine = scratch.take<T>(half);
    double* rate = scratch.take<double>(half);
    for (Index i = 0; i < half; ++i)
      rate[i] = std::pow(op.theta, -2.0 * static_cast<double>(i) / static_cast<double>(op.head_dim));
    for (Index r = begin; r < end; ++r) {
      const Index first = op.first.empty() ? 0 : op.first[r / op.length];
      const auto position = static_cast<double>(first + r % op.length);
      for (Index i = 0; i < half; ++i) {
        cosine[i] = static_cast<T>(std::cos(position * rate[i]));
        const double s = std::sin(position * rate[i]);
        sine[i] = static_cast<T>(op.rotation == Rotation::Forward ? s : -s);
      }
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
