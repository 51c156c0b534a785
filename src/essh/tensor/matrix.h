#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "essh/base/bfloat16.h"
#include "essh/base/error.h"

namespace essh {

using Index = std::int64_t;

namespace detail {
template <class T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<BFloat16> {
  using type = float;
};
}  // namespace detail

// The type in which a kernel over T keeps sums, recurrent state, gains, modal tables and gradients of weights.
template <class T>
using Wide = typename detail::WideOf<std::remove_const_t<T>>::type;

// Non-owning views. An empty view (no data) means "not wanted" or "zero". Members are constexpr so that GPU kernels can
// call them.
template <class T>
struct Vector {
  T* data = nullptr;
  Index size = 0;

  constexpr T& operator[](Index i) const { return data[i]; }
  constexpr bool empty() const { return data == nullptr; }
  constexpr Vector first(Index count) const { return {data, count}; }
  constexpr Vector middle(Index begin, Index count) const { return {data + begin, count}; }
  constexpr operator Vector<const T>() const requires(!std::is_const_v<T>) { return {data, size}; }
};

// Row-major with a row stride, so a prefix of rows and columns is a view too.
template <class T>
struct Matrix {
  T* data = nullptr;
  Index rows = 0;
  Index cols = 0;
  Index stride = 0;

  constexpr T* row(Index r) const { return data + r * stride; }
  constexpr T& operator()(Index r, Index c) const { return data[r * stride + c]; }
  constexpr bool empty() const { return data == nullptr; }
  constexpr Matrix block(Index first_row, Index row_count, Index first_col, Index col_count) const {
    return {data + first_row * stride + first_col, row_count, col_count, stride};
  }
  constexpr Matrix top(Index row_count) const { return {data, row_count, cols, stride}; }
  constexpr Matrix left(Index col_count) const { return {data, rows, col_count, stride}; }
  constexpr Matrix middle(Index first_row, Index row_count) const { return block(first_row, row_count, 0, cols); }
  constexpr operator Matrix<const T>() const requires(!std::is_const_v<T>) { return {data, rows, cols, stride}; }
};

template <class T>
constexpr Matrix<T> dense(T* data, Index rows, Index cols) {
  return {data, rows, cols, cols};
}

}  // namespace essh
