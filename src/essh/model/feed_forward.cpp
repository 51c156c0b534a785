#include "essh/model/feed_forward.h"

#include "essh/kernels/column_squares.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/swiglu.h"

namespace essh {

template <class T>
void FeedForward<T>::forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x,
                             Tape* tape) const {
  const Index units = pass.capacity.ffn;
  const auto gate = pass.arena.matrix<T>(u.rows, units), up = pass.arena.matrix<T>(u.rows, units);
  const auto mark = pass.arena.mark();
  launch(pass.stream, Gemm<T>{.a = u, .b = weights.matrix(gate_).top(units), .c = gate, .transpose_b = Transpose::Yes});
  launch(pass.stream, Gemm<T>{.a = u, .b = weights.matrix(up_).top(units), .c = up, .transpose_b = Transpose::Yes});
  const auto hidden = tape ? pass.arena.matrix<T>(u.rows, units) : gate;
  launch(pass.stream, SwigluForward<T>{.gate = gate, .up = up, .hidden = hidden});
  if (!pass.ffn_squares.empty())
    launch(pass.stream, ColumnSquares<T>{.x = hidden, .sums = {pass.ffn_squares.row(layer_), units}});
  launch(
      pass.stream,
      Gemm<T>{.a = hidden, .b = weights.matrix(down_).left(units), .c = x, .transpose_b = Transpose::Yes, .beta = 1});
  pass.arena.release(mark);
  if (tape) *tape = {gate, up};
}

template <class T>
void FeedForward<T>::backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients,
                              Matrix<const T> u, Matrix<const T> d_x, const Tape& tape, Matrix<T> d_u) const {
  using W = Wide<T>;
  const Index units = pass.capacity.ffn;
  const double scale = pass.ffn_gradient_scale;
  const auto mark = pass.arena.mark();
  const auto hidden = pass.arena.matrix<T>(u.rows, units), d_hidden = pass.arena.matrix<T>(u.rows, units);
  launch(pass.stream, SwigluForward<T>{.gate = tape.gate, .up = tape.up, .hidden = hidden});
  launch(pass.stream, Gemm<T, W>{.a = d_x,
                                 .b = hidden,
                                 .c = gradients.matrix(down_).left(units),
                                 .transpose_a = Transpose::Yes,
                                 .alpha = scale,
                                 .beta = 1});
  launch(pass.stream, Gemm<T>{.a = d_x, .b = weights.matrix(down_).left(units), .c = d_hidden});
  launch(
      pass.stream,
      SwigluBackward<T>{.gate = tape.gate, .up = tape.up, .d_hidden = d_hidden, .d_gate = tape.gate, .d_up = tape.up});
  double beta = 0;
  for (const auto& [weight, d_y] : {std::pair{gate_, tape.gate}, std::pair{up_, tape.up}}) {
    launch(pass.stream, Gemm<T, W>{.a = d_y,
                                   .b = u,
                                   .c = gradients.matrix(weight).top(units),
                                   .transpose_a = Transpose::Yes,
                                   .alpha = scale,
                                   .beta = 1});
    launch(pass.stream, Gemm<T>{.a = d_y, .b = weights.matrix(weight).top(units), .c = d_u, .beta = beta});
    beta = 1;
  }
  pass.arena.release(mark);
}

template class FeedForward<float>;
template class FeedForward<double>;

}  // namespace essh
