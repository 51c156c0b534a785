#pragma once
#include <vector>

#include "essh/model/mixer.h"

namespace essh {

// On a GPU the bits of a product depend on its shape and on the strides of its factors. So a family at a reduced
// capacity packs what it keeps of a weight before it multiplies, and an exported slice, which holds just that, computes
// the same products.

// The first `count` columns of a weight. A copy is in the arena of the pass.
template <class T>
Matrix<const T> kept_columns(const Pass& pass, Matrix<const T> weight, Index count);

// Linear maps of one input, their outputs side by side: y = [u W1^T, u W2^T, ...], with the first rows of each weight.
// Weights that follow each other in memory, as the layout places them at full capacity, make one product.
class StackedLinear {
 public:
  struct Part {
    std::size_t weight;
    Index rows;
  };
  explicit StackedLinear(std::vector<Part> parts) : parts_(std::move(parts)) {}

  Index columns() const;
  // The columns of y that belong to a part.
  template <class T>
  Matrix<T> part(Matrix<T> y, std::size_t index) const {
    Index first = 0;
    for (std::size_t i = 0; i < index; ++i) first += parts_[i].rows;
    return y.block(0, y.rows, first, parts_[index].rows);
  }

  template <class T>
  void forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> y) const;
  // d_u = gradient of u; the weights' gradients, times `scale`, are added.
  template <class T>
  void backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const std::type_identity_t<T>> d_y, double scale, Matrix<T> d_u) const;

 private:
  // Parts that follow each other in memory are one.
  std::vector<Part> runs(const ParameterLayout& layout) const;
  // The factors of the products of a pass. Copies are in its arena.
  template <class T>
  std::vector<Matrix<const T>> factors(const Pass& pass, const Weights<T>& weights) const;

  std::vector<Part> parts_;
};

}  // namespace essh
