#include "essh/model/stacked_linear.h"

#include "essh/kernels/gemm.h"

namespace essh {

Index StackedLinear::columns() const {
  Index sum = 0;
  for (const auto& part : parts_) sum += part.rows;
  return sum;
}

std::vector<StackedLinear::Piece> StackedLinear::pieces(const ParameterLayout& layout) const {
  std::vector<Piece> list;
  Index column = 0;
  for (const auto& part : parts_) {
    const Index width = layout.tensors()[part.weight].cols;
    if (!list.empty() && layout.offset(list.back().weight) + list.back().rows * width == layout.offset(part.weight))
      list.back().rows += part.rows;
    else
      list.push_back({part.weight, part.rows, column});
    column += part.rows;
  }
  return list;
}

template <class T>
void StackedLinear::forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> y) const {
  for (const auto& piece : pieces(*weights.layout)) {
    launch(pass.stream, Gemm<T>{.a = u,
                                .b = dense(weights.matrix(piece.weight).data, piece.rows, u.cols),
                                .c = y.block(0, y.rows, piece.column, piece.rows),
                                .transpose_b = Transpose::Yes});
  }
}

template <class T>
void StackedLinear::backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients,
                             Matrix<const T> u, Matrix<const std::type_identity_t<T>> d_y, double scale,
                             Matrix<T> d_u) const {
  double beta = 0;
  for (const auto& piece : pieces(*weights.layout)) {
    const auto d_part = d_y.block(0, d_y.rows, piece.column, piece.rows);
    launch(pass.stream, Gemm<T, Wide<T>>{.a = d_part,
                                         .b = u,
                                         .c = dense(gradients.matrix(piece.weight).data, piece.rows, u.cols),
                                         .transpose_a = Transpose::Yes,
                                         .alpha = scale,
                                         .beta = 1});
    launch(pass.stream,
           Gemm<T>{
               .a = d_part, .b = dense(weights.matrix(piece.weight).data, piece.rows, u.cols), .c = d_u, .beta = beta});
    beta = 1;
  }
}

#define ESSH_INSTANTIATE(T)                                                                                   \
  template void StackedLinear::forward(const Pass&, const Weights<T>&, Matrix<const T>, Matrix<T>) const;     \
  template void StackedLinear::backward(const Pass&, const Weights<T>&, const Gradients<T>&, Matrix<const T>, \
                                        Matrix<const T>, double, Matrix<T>) const;
ESSH_INSTANTIATE(float)
ESSH_INSTANTIATE(double)
ESSH_INSTANTIATE(BFloat16)
#undef ESSH_INSTANTIATE

}  // namespace essh
