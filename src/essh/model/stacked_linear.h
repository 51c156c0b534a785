#pragma once
#include <array>
#include <initializer_list>

#include "essh/model/mixer.h"

namespace essh {

// Linear maps of one input, their outputs side by side: y = [u W1^T, u W2^T, ...], with the first rows of each weight.
class StackedLinear {
 public:
  struct Part {
    std::size_t weight;
    Index rows;
  };
  StackedLinear(std::initializer_list<Part> parts);

  Index columns() const;
  // The columns of y of one weight.
  template <class T>
  Matrix<T> part(Matrix<T> y, std::size_t index) const {
    Index first = 0;
    for (std::size_t i = 0; i < index; ++i) first += parts_[i].rows;
    return y.block(0, y.rows, first, parts_[index].rows);
  }

  template <class T>
  void forward(const Pass& pass, const Weights& weights, Matrix<const T> u, Matrix<T> y) const;
  template <class T>
  void forward(const Pass& pass, const Weights& weights, const NormedResidual<T>& u, Matrix<T> y) const;
  // hidden = silu(u W1^T) * (u W2^T) of two weights; y is room for both products and may hold anything afterwards.
  template <class T>
  void forward_gated(const Pass& pass, const Weights& weights, Matrix<const T> u, Matrix<T> y, Matrix<T> hidden,
                     Vector<const std::int32_t> kept) const;
  template <class T>
  void forward_gated(const Pass& pass, const Weights& weights, const NormedResidual<T>& u, Matrix<T> y,
                     Matrix<T> hidden, Vector<const std::int32_t> kept) const;
  // Factors on the gradients of the weights and of u.
  struct Scales {
    double weights = 1, input = 1;
  };
  // d_u = gradient of u; the weights' gradients are added.
  template <class T>
  void backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients, Matrix<const T> u,
                Matrix<const std::type_identity_t<T>> d_y, Scales scales, Matrix<T> d_u) const;

 private:
  static constexpr std::size_t kMost = 4;
  template <class Item>
  struct List {
    std::array<Item, kMost> items;
    std::size_t count = 0;

    std::span<const Item> span() const { return {items.data(), count}; }
  };
  // Whether the weights are contiguous in memory and keep all rows, and so form one matrix.
  bool is_one(const Weights& weights) const;
  List<Weight> operands(const Weights& weights) const;
  // The kept rows as one matrix, copied into the pass's arena if necessary.
  template <class T>
  Matrix<const T> together(const Pass& pass, const Weights& weights) const;

  std::array<Part, kMost> parts_;
  std::size_t count_;
};

}  // namespace essh
