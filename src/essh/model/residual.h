#pragma once
#include <type_traits>
#include <variant>

#include "essh/kernels/linear.h"
#include "essh/kernels/rms_norm.h"

namespace essh {

// The residual stream, tokens x width: in T, or in Wide<T> in a model with residual_in_fp32.
template <class T>
using Residual =
    std::conditional_t<std::is_same_v<T, Wide<T>>, std::variant<Matrix<T>>, std::variant<Matrix<T>, Matrix<Wide<T>>>>;

// y = x + scale * u weight^T, summed before it is rounded to the residual's type. y may be x. `next`: a norm of y.
template <class T>
void add_product(Stream& stream, Matrix<const T> u, const Weight& weight, double scale, RowBits bits,
                 const Residual<T>& x, const Residual<T>& y, NextNorm<T>* next = nullptr) {
  std::visit(
      [&]<class R>(Matrix<R> to) {
        Linear<T, R> product{
            .x = u, .weights = {&weight, 1}, .y = to, .scale = scale, .addend = std::get<Matrix<R>>(x), .bits = bits};
        // In a wider type than the norm's result it would not be worth it.
        if constexpr (std::is_same_v<T, R>) product.next = next;
        launch(stream, product);
      },
      y);
}

// The residual of a recurrent pass and its norm, gain * x / rms(x), of which the product that ends a block can compute
// a part, and the first product of the next block the rest.
template <class T>
struct NormedResidual {
  Residual<T> x;
  double eps;
  NextNorm<T> norm;

  Index rows() const { return norm.y.rows; }
  // x += scale * u weight^T, to be normalised with this gain next; empty: otherwise.
  void add_product(Stream& stream, Matrix<const T> u, const Weight& weight, double scale, RowBits bits,
                   Vector<const Wide<T>> next_gain) {
    norm.gain = next_gain;
    norm.parts = 0;
    essh::add_product<T>(stream, u, weight, scale, bits, x, x, next_gain.size > 0 ? &norm : nullptr);
  }
  // Calls use(the norm).
  template <class Use>
  void with(const Use& use) const {
    std::visit(
        [&]<class R>(Matrix<R> from) {
          use(RmsNormForward<T, R>{.x = from, .gain = norm.gain, .y = norm.y, .inverse_rms = {}, .eps = eps});
        },
        x);
  }
};

}  // namespace essh
