#pragma once
#include <algorithm>
#include <limits>

#include "essh/kernels/cpu/vectors.h"
#include "essh/tensor/matrix.h"

// Reductions in a fixed order that still vectorises: many partial values, then folded by halves.
namespace essh::cpu {

template <Index kSums, class T, class Term>
inline T sum_by(Index count, const Term& term) {
  T sums[kSums] = {};
  Index i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (Index j = 0; j < kSums; ++j) sums[j] += term(i + j);
  }
  for (Index j = 0; i < count; ++i, ++j) sums[j] += term(i);
  for (Index half = kSums / 2; half > 0; half /= 2) {
    for (Index j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// Sum of term(i) for i in [0, count).
template <class T, class Term>
inline T sum_of(Index count, const Term& term) {
  return count < 64 ? sum_by<16, T>(count, term) : sum_by<64, T>(count, term);
}

namespace detail {

// Folds a vector by halves.
template <class T, int Bytes>
inline T folded(Lanes<T, Bytes> v) {
  constexpr int kCount = Bytes / static_cast<int>(sizeof(T));
  if constexpr (kCount == 2) {
    return v[0] + v[1];
  } else if constexpr (Bytes == 16) {
    return (v[0] + v[2]) + (v[1] + v[3]);
  } else {
    const auto [low, high] = halves(v, std::make_index_sequence<kCount / 2>());
    return folded<T, Bytes / 2>(low + high);
  }
}

template <class T, int kVectors>
inline __attribute__((always_inline)) T folded_sums(Lanes<T> (&sums)[kVectors]) {
  if constexpr (kVectors == 1) {
    return folded<T, kVectorBytes>(sums[0]);
  } else {
    Lanes<T> pairs[kVectors / 2];
    unrolled<kVectors / 2>([&](auto v)
                               __attribute__((always_inline)) { pairs[v()] = sums[v()] + sums[v() + kVectors / 2]; });
    return folded_sums<T>(pairs);
  }
}

// By vectors: GCC 12 would fold the sums of sum_by() one by one, in memory.
template <int kSums, class T>
inline __attribute__((always_inline)) T dot_by(Index count, const T* x, const T* y) {
  constexpr int kWidth = static_cast<int>(kLanes<T>), kVectors = kSums / kWidth;
  Lanes<T> sums[kVectors] = {};
  const auto add = [&](const T* a, const T* b) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      sums[v()] += load<T>(a + v() * kWidth) * load<T>(b + v() * kWidth);
    });
  };
  Index i = 0;
  for (; i + kSums <= count; i += kSums) add(x + i, y + i);
  if (i < count) {
    T a[kSums] = {}, b[kSums] = {};
    std::copy(x + i, x + count, a);
    std::copy(y + i, y + count, b);
    add(a, b);
  }
  return folded_sums<T>(sums);
}

}  // namespace detail

template <class T>
inline T dot(Index count, const T* x, const T* y) {
  return count < 64 ? detail::dot_by<16>(count, x, y) : detail::dot_by<64>(count, x, y);
}

// Maximum of `count` values; NaN is ignored.
template <class T>
inline T largest(Index count, const T* x) {
  constexpr Index kLanes = 64;
  T most[kLanes];
  for (Index j = 0; j < kLanes; ++j) most[j] = -std::numeric_limits<T>::infinity();
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
  }
  for (Index j = 0; i < count; ++i, ++j) most[j] = x[i] > most[j] ? x[i] : most[j];
  for (Index half = kLanes / 2; half > 0; half /= 2) {
    for (Index j = 0; j < half; ++j) most[j] = most[j + half] > most[j] ? most[j + half] : most[j];
  }
  return most[0];
}

}  // namespace essh::cpu
