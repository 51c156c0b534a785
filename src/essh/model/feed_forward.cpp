#include "essh/model/feed_forward.h"

#include "essh/kernels/column_squares.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/swiglu.h"

namespace essh {

template <class T>
void FeedForward<T>::forward(const Pass& pass, const Weights& weights, Matrix<const T> u, const Residual<T>& x,
                             const Residual<T>& y, Tape* tape) const {
  const Index units = pass.capacity.ffn;
  const auto linear = gate_up(pass.capacity);
  const auto both = pass.arena.matrix<T>(u.rows, 2 * units);
  const auto mark = pass.arena.mark();
  const auto hidden = tape ? pass.arena.matrix<T>(u.rows, units) : linear.part(both, 0);
  if (tape) {
    linear.forward(pass, weights, u, both);
    launch(pass.stream, SwigluForward<T>{.gate = linear.part(both, 0), .up = linear.part(both, 1), .hidden = hidden});
  } else {
    linear.forward_gated(pass, weights, u, both, hidden, {});
  }
  if (!pass.ffn_squares.empty())
    launch(pass.stream, ColumnSquares<T>{.x = hidden, .sums = {pass.ffn_squares.row(layer_), units}});
  add_product<T>(pass.stream, hidden, weights[down_].left(units), 1, pass.bits, x, y);
  pass.arena.release(mark);
  if (tape) *tape = {both};
}

template <class T>
void FeedForward<T>::extend(const Pass& pass, const Weights& weights, NormedResidual<T>& u,
                            Vector<const Wide<T>> next_gain, Vector<const std::int32_t> kept_units) const {
  const auto linear = gate_up(pass.capacity);
  const auto both = pass.arena.matrix<T>(u.rows(), linear.columns()), hidden = linear.part(both, 0);
  linear.forward_gated(pass, weights, u, both, hidden, kept_units);
  u.add_product(pass.stream, hidden, weights[down_].left(hidden.cols), 1, pass.bits, next_gain);
}

template <class T>
void FeedForward<T>::backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients,
                              Matrix<const T> u, Matrix<const T> d_y, const Tape& tape, Matrix<T> d_u) const {
  const Index units = pass.capacity.ffn;
  const double scale = pass.ffn_gradient_scale;
  const auto linear = gate_up(pass.capacity);
  const auto gate = linear.part(tape.gate_up, 0), up = linear.part(tape.gate_up, 1);
  const auto mark = pass.arena.mark();
  const auto hidden = pass.arena.matrix<T>(u.rows, units), d_hidden = pass.arena.matrix<T>(u.rows, units);
  launch(pass.stream, Gemm<T>{.a = d_y, .b = weights[down_].left(units).as<T>(), .c = d_hidden});
  launch(pass.stream,
         SwigluBackward<T>{.gate = gate, .up = up, .d_hidden = d_hidden, .d_gate = gate, .d_up = up, .hidden = hidden});
  launch(pass.stream, Gemm<T, Wide<T>>{.a = d_y,
                                       .b = hidden,
                                       .c = gradients.matrix(down_).left(units),
                                       .transpose_a = Transpose::Yes,
                                       .alpha = scale,
                                       .beta = 1});
  linear.backward(pass, weights, gradients, u, tape.gate_up, {.weights = scale}, d_u);
  pass.arena.release(mark);
}

template class FeedForward<float>;
template class FeedForward<double>;
template class FeedForward<BFloat16>;

}  // namespace essh
