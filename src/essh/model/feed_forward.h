#pragma once
#include "essh/model/mixer.h"

namespace essh {

// x += W_down (silu(W_gate u) * (W_up u)), with the first `ffn` units.
template <class T>
class FeedForward {
 public:
  struct Tape {
    Matrix<T> gate, up;
  };

  FeedForward(const ParameterLayout& layout, Index layer)
      : layer_(layer),
        gate_(layout.find(layer, "mlp.gate_proj.weight")),
        up_(layout.find(layer, "mlp.up_proj.weight")),
        down_(layout.find(layer, "mlp.down_proj.weight")) {}

  void forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x, Tape* tape) const;
  // d_u = gradient of u given d_x. The tape's memory is used up.
  void backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const T> d_x, const Tape& tape, Matrix<T> d_u) const;

 private:
  Index layer_;
  std::size_t gate_, up_, down_;
};

}  // namespace essh
