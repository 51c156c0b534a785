#include "essh/model/stacked_linear.h"

#include <algorithm>

#include "essh/kernels/copy.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/normed_linear.h"

namespace essh {

StackedLinear::StackedLinear(std::initializer_list<Part> parts) : parts_{}, count_(parts.size()) {
  ESSH_ASSERT(parts.size() <= kMost);
  std::copy(parts.begin(), parts.end(), parts_.begin());
}

Index StackedLinear::columns() const {
  Index sum = 0;
  for (std::size_t i = 0; i < count_; ++i) sum += parts_[i].rows;
  return sum;
}

bool StackedLinear::is_one(const Weights& weights) const {
  return weights.stacks && std::all_of(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(count_),
                                       [&](const Part& part) { return part.rows == weights[part.weight].rows; });
}

StackedLinear::List<Weight> StackedLinear::operands(const Weights& weights) const {
  List<Weight> list;
  if (is_one(weights)) {
    list.items[0] = weights[parts_[0].weight].top(columns());
    list.count = 1;
  } else {
    for (; list.count < count_; ++list.count)
      list.items[list.count] = weights[parts_[list.count].weight].top(parts_[list.count].rows);
  }
  return list;
}

template <class T>
Matrix<const T> StackedLinear::together(const Pass& pass, const Weights& weights) const {
  const auto list = operands(weights);
  if (list.count == 1) return list.items[0].as<T>();
  const auto copy = pass.arena.matrix<T>(columns(), list.items[0].cols);
  Index row = 0;
  for (const auto& weight : list.span()) {
    launch(pass.stream, Copy<T>{.from = weight.as<T>(), .to = copy.middle(row, weight.rows)});
    row += weight.rows;
  }
  return copy;
}

template <class T>
void StackedLinear::forward(const Pass& pass, const Weights& weights, Matrix<const T> u, Matrix<T> y) const {
  const auto list = operands(weights);
  launch(pass.stream, Linear<T>{.x = u, .weights = list.span(), .y = y, .bits = pass.bits});
}

template <class T>
void StackedLinear::forward(const Pass& pass, const Weights& weights, const NormedResidual<T>& u, Matrix<T> y) const {
  const auto list = operands(weights);
  u.with([&]<class R>(const RmsNormForward<T, R>& norm) {
    launch(pass.stream, NormedLinear<T, R>{.norm = norm,
                                           .linear = {.x = norm.y, .weights = list.span(), .y = y, .bits = pass.bits},
                                           .begun = u.norm});
  });
}

template <class T>
void StackedLinear::forward_gated(const Pass& pass, const Weights& weights, Matrix<const T> u, Matrix<T> y,
                                  Matrix<T> hidden, Vector<const std::int32_t> kept) const {
  const auto list = operands(weights);
  launch(pass.stream,
         GatedLinear<T>{
             .both = {.x = u, .weights = list.span(), .y = y, .bits = pass.bits}, .hidden = hidden, .kept = kept});
}

template <class T>
void StackedLinear::forward_gated(const Pass& pass, const Weights& weights, const NormedResidual<T>& u, Matrix<T> y,
                                  Matrix<T> hidden, Vector<const std::int32_t> kept) const {
  const auto list = operands(weights);
  u.with([&]<class R>(const RmsNormForward<T, R>& norm) {
    launch(pass.stream,
           NormedGatedLinear<T, R>{.norm = norm,
                                   .gated = {.both = {.x = norm.y, .weights = list.span(), .y = y, .bits = pass.bits},
                                             .hidden = hidden,
                                             .kept = kept},
                                   .begun = u.norm});
  });
}

template <class T>
void StackedLinear::backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients, Matrix<const T> u,
                             Matrix<const std::type_identity_t<T>> d_y, Scales scales, Matrix<T> d_u) const {
  const auto add_gradient = [&](Matrix<const T> d_part, Matrix<Wide<T>> gradient) {
    launch(pass.stream,
           Gemm<T, Wide<T>>{
               .a = d_part, .b = u, .c = gradient, .transpose_a = Transpose::Yes, .alpha = scales.weights, .beta = 1});
  };
  if (is_one(weights)) {
    add_gradient(d_y, dense(gradients.matrix(parts_[0].weight).data, columns(), u.cols));
  } else {
    for (std::size_t i = 0; i < count_; ++i)
      add_gradient(part(d_y, i), gradients.matrix(parts_[i].weight).top(parts_[i].rows));
  }
  const auto mark = pass.arena.mark();
  launch(pass.stream, Gemm<T>{.a = d_y, .b = together<T>(pass, weights), .c = d_u, .alpha = scales.input});
  pass.arena.release(mark);
}

#define ESSH_INSTANTIATE(T)                                                                                      \
  template void StackedLinear::forward(const Pass&, const Weights&, Matrix<const T>, Matrix<T>) const;           \
  template void StackedLinear::forward_gated(const Pass&, const Weights&, Matrix<const T>, Matrix<T>, Matrix<T>, \
                                             Vector<const std::int32_t>) const;                                  \
  template void StackedLinear::forward(const Pass&, const Weights&, const NormedResidual<T>&, Matrix<T>) const;  \
  template void StackedLinear::forward_gated(const Pass&, const Weights&, const NormedResidual<T>&, Matrix<T>,   \
                                             Matrix<T>, Vector<const std::int32_t>) const;                       \
  template void StackedLinear::backward(const Pass&, const Weights&, const Gradients<T>&, Matrix<const T>,       \
                                        Matrix<const T>, Scales, Matrix<T>) const;
ESSH_INSTANTIATE(float)
ESSH_INSTANTIATE(double)
ESSH_INSTANTIATE(BFloat16)
#undef ESSH_INSTANTIATE

}  // namespace essh
