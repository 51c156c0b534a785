#include "essh/model/stacked_linear.h"

#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"

namespace essh {

template <class T>
Matrix<const T> kept_columns(const Pass& pass, Matrix<const T> weight, Index count) {
  const auto kept = weight.left(count);
  if (pass.stream.device() == Device::Cpu || count == weight.cols) return kept;
  const auto packed = pass.arena.matrix<T>(kept.rows, kept.cols);
  launch(pass.stream, Copy<T>{.from = kept, .to = packed});
  return packed;
}

Index StackedLinear::columns() const {
  Index sum = 0;
  for (const auto& part : parts_) sum += part.rows;
  return sum;
}

std::vector<StackedLinear::Part> StackedLinear::runs(const ParameterLayout& layout) const {
  std::vector<Part> list;
  for (const auto& part : parts_) {
    const Index width = layout.tensors()[part.weight].cols;
    if (!list.empty() && layout.offset(list.back().weight) + list.back().rows * width == layout.offset(part.weight))
      list.back().rows += part.rows;
    else
      list.push_back(part);
  }
  return list;
}

template <class T>
std::vector<Matrix<const T>> StackedLinear::factors(const Pass& pass, const Weights<T>& weights) const {
  std::vector<Matrix<const T>> list;
  for (const auto& run : runs(*weights.layout)) {
    const auto weight = weights.matrix(run.weight);
    list.push_back(dense(weight.data, run.rows, weight.cols));
  }
  if (pass.stream.device() == Device::Cpu || list.size() == 1) return list;
  const auto together = pass.arena.matrix<T>(columns(), list[0].cols);
  Index row = 0;
  for (const auto& factor : list) {
    launch(pass.stream, Copy<T>{.from = factor, .to = together.middle(row, factor.rows)});
    row += factor.rows;
  }
  return {together};
}

template <class T>
void StackedLinear::forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> y) const {
  const auto mark = pass.arena.mark();
  Index column = 0;
  for (const auto& factor : factors(pass, weights)) {
    launch(pass.stream,
           Gemm<T>{.a = u, .b = factor, .c = y.block(0, y.rows, column, factor.rows), .transpose_b = Transpose::Yes});
    column += factor.rows;
  }
  pass.arena.release(mark);
}

template <class T>
void StackedLinear::backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients,
                             Matrix<const T> u, Matrix<const std::type_identity_t<T>> d_y, double scale,
                             Matrix<T> d_u) const {
  Index column = 0;
  for (const auto& run : runs(*weights.layout)) {
    launch(pass.stream, Gemm<T, Wide<T>>{.a = d_y.block(0, d_y.rows, column, run.rows),
                                         .b = u,
                                         .c = dense(gradients.matrix(run.weight).data, run.rows, u.cols),
                                         .transpose_a = Transpose::Yes,
                                         .alpha = scale,
                                         .beta = 1});
    column += run.rows;
  }
  const auto mark = pass.arena.mark();
  column = 0;
  for (const auto& factor : factors(pass, weights)) {
    launch(
        pass.stream,
        Gemm<T>{
            .a = d_y.block(0, d_y.rows, column, factor.rows), .b = factor, .c = d_u, .beta = column > 0 ? 1.0 : 0.0});
    column += factor.rows;
  }
  pass.arena.release(mark);
}

#define ESSH_INSTANTIATE(T)                                                                                   \
  template Matrix<const T> kept_columns(const Pass&, Matrix<const T>, Index);                                 \
  template void StackedLinear::forward(const Pass&, const Weights<T>&, Matrix<const T>, Matrix<T>) const;     \
  template void StackedLinear::backward(const Pass&, const Weights<T>&, const Gradients<T>&, Matrix<const T>, \
                                        Matrix<const T>, double, Matrix<T>) const;
ESSH_INSTANTIATE(float)
ESSH_INSTANTIATE(double)
ESSH_INSTANTIATE(BFloat16)
#undef ESSH_INSTANTIATE

}  // namespace essh
