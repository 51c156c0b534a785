#include "essh/kernels/gates.h"

#include <cmath>

#include "essh/kernels/cpu/vector_math.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const GatesForward<T>& op) {
  const Index columns = op.write.cols;
  stream.pool().split(op.write.rows, [&](Index begin, Index end, int) {
    const auto add_bias = [&](T* x, Vector<const T> bias) {
      for (Index c = 0; c < columns; ++c) x[c] += bias[c];
    };
    for (Index r = begin; r < end; ++r) {
      for (const auto& [gate, bias] :
           {std::pair{op.write.row(r), op.write_bias}, std::pair{op.read.row(r), op.read_bias}}) {
        add_bias(gate, bias);
        cpu::sigmoid(columns, gate, gate);
        for (Index c = 0; c < columns; ++c) gate[c] *= T(2);
      }
      add_bias(op.clock.row(r), op.clock_bias);
      cpu::softplus(columns, op.clock.row(r), op.clock.row(r));
    }
  });
}

template <class T>
void run(cpu::Stream& stream, const GatesBackward<T>& op) {
  const Index columns = op.write.cols;
  stream.pool().split(op.write.rows, [&](Index begin, Index end, int thread) {
    cpu::Scratch scratch(stream, thread);
    T* slope = scratch.take<T>(columns);
    for (Index r = begin; r < end; ++r) {
      for (Index c = 0; c < columns; ++c) op.d_write(r, c) *= op.write(r, c) * (T(1) - op.write(r, c) / T(2));
      for (Index c = 0; c < columns; ++c) op.d_read(r, c) *= op.read(r, c) * (T(1) - op.read(r, c) / T(2));
      // softplus'(s) = sigmoid(s) = 1 - e^{-clock}
      cpu::one_minus_exp(columns, op.clock.row(r), slope);
      for (Index c = 0; c < columns; ++c) op.d_clock(r, c) *= slope[c];
    }
  });
  stream.pool().split(columns, [&](Index begin, Index end, int) {
    for (Index r = 0; r < op.write.rows; ++r) {
      for (Index c = begin; c < end; ++c) op.d_write_bias[c] += op.d_write(r, c);
      for (Index c = begin; c < end; ++c) op.d_read_bias[c] += op.d_read(r, c);
      for (Index c = begin; c < end; ++c) op.d_clock_bias[c] += op.d_clock(r, c);
    }
  });
}

template void run(cpu::Stream&, const GatesForward<float>&);
template void run(cpu::Stream&, const GatesForward<double>&);
template void run(cpu::Stream&, const GatesBackward<float>&);
template void run(cpu::Stream&, const GatesBackward<double>&);

}  // namespace essh
