#pragma once
#include <limits>

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

template <class T>
inline T dot(Index count, const T* x, const T* y) {
  return sum_of<T>(count, [=](Index i) { return x[i] * y[i]; });
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
