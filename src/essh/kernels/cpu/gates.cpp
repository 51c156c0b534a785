#include "essh/kernels/gates.h"

#include <cmath>

#include "essh/kernels/cpu/vector_math.h"

namespace essh {

template <class T>
void run(cpu::Stream& stream, const GatesForward<T>& op) {
  const Index columns = op.write.cols;
  stream.pool().split(op.write.rows, [&](Index begin, Index end, int) {
    const auto add_bias = [&](const T* logits, Vector<const T> bias, T* sum) {
      for (Index c = 0; c < columns; ++c) sum[c] = logits[c] + bias[c];
    };
    const auto gate = [&](const T* logits, Vector<const T> bias, T* out) {
      add_bias(logits, bias, out);
      cpu::sigmoid(columns, out, out);
      for (Index c = 0; c < columns; ++c) out[c] *= T(2);
    };
    for (Index r = begin; r < end; ++r) {
      gate(op.write_logits.row(r), op.write_bias, op.write.row(r));
      gate(op.read_logits.row(r), op.read_bias, op.read.row(r));
      add_bias(op.clock_logits.row(r), op.clock_bias, op.clock.row(r));
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
    const auto gate = [&](const T* value, const T* d_value, T* d_logits) {
      for (Index c = 0; c < columns; ++c) d_logits[c] = d_value[c] * value[c] * (T(1) - value[c] / T(2));
    };
    for (Index r = begin; r < end; ++r) {
      gate(op.write.row(r), op.d_write.row(r), op.d_write_logits.row(r));
      gate(op.read.row(r), op.d_read.row(r), op.d_read_logits.row(r));
      // softplus'(s) = sigmoid(s) = 1 - e^{-clock}
      cpu::one_minus_exp(columns, op.clock.row(r), slope);
      for (Index c = 0; c < columns; ++c) op.d_clock_logits(r, c) = op.d_clock(r, c) * slope[c];
    }
  });
  stream.pool().split(columns, [&](Index begin, Index end, int) {
    for (Index r = 0; r < op.write.rows; ++r) {
      for (Index c = begin; c < end; ++c) op.d_write_bias[c] += op.d_write_logits(r, c);
      for (Index c = begin; c < end; ++c) op.d_read_bias[c] += op.d_read_logits(r, c);
      for (Index c = begin; c < end; ++c) op.d_clock_bias[c] += op.d_clock_logits(r, c);
    }
  });
}

template void run(cpu::Stream&, const GatesForward<float>&);
template void run(cpu::Stream&, const GatesForward<double>&);
template void run(cpu::Stream&, const GatesBackward<float>&);
template void run(cpu::Stream&, const GatesBackward<double>&);

}  // namespace essh
