#include "essh/kernels/cuda/device/rows.cuh"
#include "essh/kernels/swiglu.h"

namespace essh {
namespace {

template <class T>
struct SwigluRows {
  SwigluForward<T> op;

  template <int N>
  __device__ void at(Index row, Index c) const {
    float gate[N], up[N];
    cuda::load(op.gate.row(row) + c, gate);
    cuda::load(op.up.row(row) + c, up);
#pragma unroll
    for (int i = 0; i < N; ++i) gate[i] *= cuda::sigmoid(gate[i]) * up[i];
    if (op.kept.size > 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (c + i >= op.kept[row]) gate[i] = 0;
      }
    }
    cuda::store(op.hidden.row(row) + c, gate);
  }
};

template <class T>
struct SwigluGradientRows {
  SwigluBackward<T> op;

  template <int N>
  __device__ void at(Index row, Index c) const {
    float gate[N], up[N], d_hidden[N], hidden[N];
    cuda::load(op.gate.row(row) + c, gate);
    cuda::load(op.up.row(row) + c, up);
    cuda::load(op.d_hidden.row(row) + c, d_hidden);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = gate[i], s = cuda::sigmoid(g), u = up[i], d = d_hidden[i];
      hidden[i] = g * s * u;
      gate[i] = d * u * s * (1.0f + g * (1.0f - s));
      up[i] = d * g * s;
    }
    cuda::store(op.d_gate.row(row) + c, gate);
    cuda::store(op.d_up.row(row) + c, up);
    if (!op.hidden.empty()) cuda::store(op.hidden.row(row) + c, hidden);
  }
};

}  // namespace

template <class T>
void run(cuda::Stream& stream, const SwigluForward<T>& op) {
  cuda::with_width<T>(
      [&]<int N>() { cuda::each_pack<N>(stream, "swiglu_forward", op.gate.rows, op.gate.cols, SwigluRows<T>{op}); },
      op.gate, op.up, op.hidden);
}

template <class T>
void run(cuda::Stream& stream, const SwigluBackward<T>& op) {
  cuda::with_width<T>(
      [&]<int N>() {
        cuda::each_pack<N>(stream, "swiglu_backward", op.gate.rows, op.gate.cols, SwigluGradientRows<T>{op});
      },
      op.gate, op.up, op.d_hidden, op.d_gate, op.d_up, op.hidden);
}

template void run(cuda::Stream&, const SwigluForward<float>&);
template void run(cuda::Stream&, const SwigluForward<BFloat16>&);
template void run(cuda::Stream&, const SwigluBackward<float>&);
template void run(cuda::Stream&, const SwigluBackward<BFloat16>&);

}  // namespace essh
