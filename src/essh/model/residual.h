#pragma once
#include <type_traits>
#include <variant>

#include "essh/kernels/linear.h"

namespace essh {

// The residual stream, tokens x width: in T, or in Wide<T> in a model with residual_in_fp32.
template <class T>
using Residual =
    std::conditional_t<std::is_same_v<T, Wide<T>>, std::variant<Matrix<T>>, std::variant<Matrix<T>, Matrix<Wide<T>>>>;

// y = x + scale * u weight^T, summed before it is rounded to the residual's type. y may be x.
template <class T>
void add_product(Stream& stream, Matrix<const T> u, const Weight& weight, double scale, RowBits bits,
                 const Residual<T>& x, const Residual<T>& y) {
  std::visit(
      [&]<class R>(Matrix<R> to) {
        launch(stream, Linear<T, R>{.x = u,
                                    .weights = {&weight, 1},
                                    .y = to,
                                    .scale = scale,
                                    .addend = std::get<Matrix<R>>(x),
                                    .bits = bits});
      },
      y);
}

}  // namespace essh
