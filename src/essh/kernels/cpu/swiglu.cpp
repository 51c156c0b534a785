#include "essh/kernels/swiglu.h"

#include "essh/kernels/cpu/vector_math.h"

namespace essh {
namespace {
constexpr Index kPiece = 256;
}

template <class T>
void run(cpu::Stream& stream, const SwigluForward<T>& op) {
  stream.pool().split(op.gate.rows, [&](Index begin, Index end, int) {
    T sigmoid[kPiece];
    for (Index r = begin; r < end; ++r) {
      for (Index c = 0; c < op.gate.cols; c += kPiece) {
        const Index n = std::min(kPiece, op.gate.cols - c);
        const T* gate = op.gate.row(r) + c;
        const T* up = op.up.row(r) + c;
        T* hidden = op.hidden.row(r) + c;
        cpu::sigmoid(n, gate, sigmoid);
        for (Index i = 0; i < n; ++i) hidden[i] = gate[i] * sigmoid[i] * up[i];
      }
      if (op.kept.size > 0) std::fill(op.hidden.row(r) + op.kept[r], op.hidden.row(r) + op.hidden.cols, T(0));
    }
  });
}

template <class T>
void run(cpu::Stream& stream, const SwigluBackward<T>& op) {
  stream.pool().split(op.gate.rows, [&](Index begin, Index end, int) {
    T sigmoid[kPiece];
    for (Index r = begin; r < end; ++r) {
      for (Index c = 0; c < op.gate.cols; c += kPiece) {
        const Index n = std::min(kPiece, op.gate.cols - c);
        const T* gate = op.gate.row(r) + c;
        const T* up = op.up.row(r) + c;
        const T* d_hidden = op.d_hidden.row(r) + c;
        T* d_gate = op.d_gate.row(r) + c;
        T* d_up = op.d_up.row(r) + c;
        cpu::sigmoid(n, gate, sigmoid);
        if (!op.hidden.empty()) {
          for (Index i = 0; i < n; ++i) op.hidden(r, c + i) = gate[i] * sigmoid[i] * up[i];
        }
        for (Index i = 0; i < n; ++i) {
          const T s = sigmoid[i], g = gate[i], d = d_hidden[i];
          const T d_silu = s * (T(1) + g * (T(1) - s));
          const T gate_gradient = d * up[i] * d_silu;
          d_up[i] = d * g * s;
          d_gate[i] = gate_gradient;
        }
      }
    }
  });
}

template void run(cpu::Stream&, const SwigluForward<float>&);
template void run(cpu::Stream&, const SwigluForward<double>&);
template void run(cpu::Stream&, const SwigluBackward<float>&);
template void run(cpu::Stream&, const SwigluBackward<double>&);

}  // namespace essh
