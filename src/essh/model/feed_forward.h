#pragma once
#include "essh/model/mixer.h"
#include "essh/model/stacked_linear.h"

namespace essh {

// y = x + W_down (silu(W_gate u) * (W_up u)), with the first `ffn` units.
template <class T>
class FeedForward {
 public:
  struct Tape {
    Matrix<T> gate_up;  // side by side
  };

  FeedForward(const ParameterLayout& layout, Index layer)
      : layer_(layer),
        gate_(layout.find(layer, "mlp.gate_proj.weight")),
        up_(layout.find(layer, "mlp.up_proj.weight")),
        down_(layout.find(layer, "mlp.down_proj.weight")) {}

  // y may be x.
  void forward(const Pass& pass, const Weights& weights, Matrix<const T> u, const Residual<T>& x, const Residual<T>& y,
               Tape* tape) const;
  // d_u = gradient of u given d_y, rounded to T. Overwrites the tape.
  void backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const T> d_y, const Tape& tape, Matrix<T> d_u) const;
  // u.x += W_down (...) for the tokens of a recurrent pass, with the first kept_units[i] units of row i, or all if
  // empty; to be normalised with next_gain afterwards.
  void extend(const Pass& pass, const Weights& weights, NormedResidual<T>& u, Vector<const Wide<T>> next_gain,
              Vector<const std::int32_t> kept_units) const;

 private:
  StackedLinear gate_up(Capacity capacity) const { return StackedLinear({{gate_, capacity.ffn}, {up_, capacity.ffn}}); }

  Index layer_;
  std::size_t gate_, up_, down_;
};

}  // namespace essh
