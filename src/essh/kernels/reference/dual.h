#pragma once
#include <cmath>

namespace essh::reference {

// A forward-mode dual number: value and derivative along one direction, exact to rounding. (The complex step does not
// work here: the state of the recurrence is itself complex.)
struct Dual {
  double value = 0;
  double slope = 0;

  Dual() = default;
  Dual(double v) : value(v) {}
  Dual(double v, double s) : value(v), slope(s) {}
};

inline Dual operator+(Dual a, Dual b) {
  return {a.value + b.value, a.slope + b.slope};
}
inline Dual operator-(Dual a, Dual b) {
  return {a.value - b.value, a.slope - b.slope};
}
inline Dual operator-(Dual a) {
  return {-a.value, -a.slope};
}
inline Dual operator*(Dual a, Dual b) {
  return {a.value * b.value, a.slope * b.value + a.value * b.slope};
}
inline Dual operator/(Dual a, Dual b) {
  const double quotient = a.value / b.value;
  return {quotient, (a.slope - quotient * b.slope) / b.value};
}
inline Dual& operator+=(Dual& a, Dual b) {
  return a = a + b;
}
inline Dual& operator-=(Dual& a, Dual b) {
  return a = a - b;
}
inline bool operator<(Dual a, Dual b) {
  return a.value < b.value;
}

inline Dual exp(Dual a) {
  const double e = std::exp(a.value);
  return {e, a.slope * e};
}
inline Dual log(Dual a) {
  return {std::log(a.value), a.slope / a.value};
}
inline Dual log1p(Dual a) {
  return {std::log1p(a.value), a.slope / (1 + a.value)};
}
inline Dual sqrt(Dual a) {
  const double root = std::sqrt(a.value);
  return {root, a.slope / (2 * root)};
}
inline Dual sin(Dual a) {
  return {std::sin(a.value), a.slope * std::cos(a.value)};
}
inline Dual cos(Dual a) {
  return {std::cos(a.value), -a.slope * std::sin(a.value)};
}

template <class S>
S sigmoid(S x) {
  using std::exp;
  return S(1) / (S(1) + exp(-x));
}
template <class S>
S softplus(S x) {
  using std::exp, std::log1p;
  return x < S(0) ? log1p(exp(x)) : x + log1p(exp(-x));
}
template <class S>
S silu(S x) {
  return x * sigmoid(x);
}

}  // namespace essh::reference
