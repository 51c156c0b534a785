#pragma once
#include <algorithm>
#include <cstring>

#include "essh/tensor/matrix.h"

// Products of matrices that fit the cache, for use inside one thread: chunks of a scan, blocks of an attention. Written
// with the compiler's vector types, so it is one source for AVX-512, AVX2, NEON and plain machines.
namespace essh::cpu {

// An operand read element by element: a(i, k) = data[i * row + k * col], so a transpose is a change of strides.
template <class T>
struct Strided {
  const T* data;
  Index row;
  Index col;
};

// Which part of `a` is not zero: all, a(i, k) with k <= i, or a(i, k) with k >= i.
enum class Shape { Full, Lower, Upper };

namespace detail {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T, int Bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(Bytes)));
};

// c(i0..i0+Rows, j..j+N) += sum over k in [begin, end) of a(i, k) b(k, j), with N = Columns vectors of Bytes.
template <class T, int Rows, int Columns, int Bytes>
inline void tile(Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride, Index begin, Index end) {
  using V = typename VectorOf<T, Bytes>::type;
  constexpr Index kLanes = Bytes / static_cast<Index>(sizeof(T));
  V sum[Rows][Columns];
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Columns; ++j) std::memcpy(&sum[i][j], c + i * c_stride + j * kLanes, sizeof(V));
  }
  for (Index k = begin; k < end; ++k) {
    V right[Columns];
    for (int j = 0; j < Columns; ++j) std::memcpy(&right[j], b + k * b_stride + j * kLanes, sizeof(V));
    for (int i = 0; i < Rows; ++i) {
      const T left = a.data[i * a.row + k * a.col];
      for (int j = 0; j < Columns; ++j) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Columns; ++j) std::memcpy(c + i * c_stride + j * kLanes, &sum[i][j], sizeof(V));
  }
}

template <class T, int Rows>
inline void row_block(Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride, Index columns, Index begin,
                      Index end) {
  constexpr Index kLanes = kVectorBytes / static_cast<Index>(sizeof(T));
  Index j = 0;
  for (; j + 2 * kLanes <= columns; j += 2 * kLanes)
    tile<T, Rows, 2, kVectorBytes>(a, b + j, b_stride, c + j, c_stride, begin, end);
  for (; j + kLanes <= columns; j += kLanes)
    tile<T, Rows, 1, kVectorBytes>(a, b + j, b_stride, c + j, c_stride, begin, end);
  if constexpr (kVectorBytes >= 64) {
    for (; j + kLanes / 2 <= columns; j += kLanes / 2)
      tile<T, Rows, 1, kVectorBytes / 2>(a, b + j, b_stride, c + j, c_stride, begin, end);
  }
  if constexpr (kVectorBytes >= 32) {
    constexpr Index kFew = 16 / static_cast<Index>(sizeof(T));
    for (; j + kFew <= columns; j += kFew) tile<T, Rows, 1, 16>(a, b + j, b_stride, c + j, c_stride, begin, end);
  }
  for (; j < columns; ++j) {
    for (int i = 0; i < Rows; ++i) {
      T sum = c[i * c_stride + j];
      for (Index k = begin; k < end; ++k) sum += a.data[i * a.row + k * a.col] * b[k * b_stride + j];
      c[i * c_stride + j] = sum;
    }
  }
}

}  // namespace detail

// c (rows x columns) += a (rows x inner) * b (inner x columns). Parts of `a` outside `shape` may hold anything only
// where whole blocks of eight rows lie outside; inside a block they must be zero.
template <class T>
void add_product(Index rows, Index columns, Index inner, Strided<T> a, const T* b, Index b_stride, T* c, Index c_stride,
                 Shape shape = Shape::Full) {
  constexpr Index kRows = 8;
  Index i = 0;
  const auto block = [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    const Index begin = shape == Shape::Upper ? std::min(i, inner) : 0;
    const Index end = shape == Shape::Lower ? std::min(i + kCount, inner) : inner;
    detail::row_block<T, kCount>({a.data + i * a.row, a.row, a.col}, b, b_stride, c + i * c_stride, c_stride, columns,
                                 begin, end);
    i += kCount;
  };
  while (i + kRows <= rows) block(std::integral_constant<int, kRows>{});
  while (i < rows) block(std::integral_constant<int, 1>{});
}

template <class T>
void transpose(Index rows, Index columns, const T* in, Index in_stride, T* out, Index out_stride) {
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) out[c * out_stride + r] = in[r * in_stride + c];
  }
}

}  // namespace essh::cpu
