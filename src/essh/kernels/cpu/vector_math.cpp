#include "essh/kernels/cpu/vector_math.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#ifdef ESSH_HAVE_HWY
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>
// Highway's functions are compiled for its target, which is more than the baseline of the architecture without
// -march=native. Only code for the same target can inline them: between these macros, lambdas with HWY_ATTR.
HWY_BEFORE_NAMESPACE();
#endif

namespace essh::cpu {
namespace {

#ifdef ESSH_HAVE_HWY
namespace hn = hwy::HWY_NAMESPACE;

// The tail goes through the same vector code from a padded copy, so a value does not depend on its position.
template <class Function>
void apply(Index count, const float* x, float* y, const Function& function) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<Index>(hn::Lanes(d));
  Index i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(function(d, hn::LoadU(d, x + i)), d, y + i);
  if (i < count) {
    HWY_ALIGN float padded[HWY_MAX_BYTES / sizeof(float)] = {};
    std::copy(x + i, x + count, padded);
    hn::Store(function(d, hn::Load(d, padded)), d, padded);
    std::copy(padded, padded + (count - i), y + i);
  }
}

// Highway's Exp and Expm1 are defined up to 104 and lose NaN; e^100 is infinity already.
template <class D, class V, class Function>
V over_whole_range(D d, V v, const Function& function) {
  const auto limit = hn::Set(d, 100.0f);
  const V value = function(hn::IfThenElse(hn::Gt(v, limit), limit, v));
  return hn::IfThenElse(hn::IsNaN(v), v, value);
}
template <class D, class V>
V exp_of(D d, V v) {
  return over_whole_range(d, v, [d](V x) HWY_ATTR { return hn::Exp(d, x); });
}

void exp_float(Index count, const float* x, float* y) {
  apply(count, x, y, [](auto d, auto v) HWY_ATTR { return exp_of(d, v); });
}
void one_minus_exp_float(Index count, const float* x, float* y) {
  apply(count, x, y, [](auto d, auto v) HWY_ATTR {
    return hn::Neg(over_whole_range(d, hn::Neg(v), [d](auto u) HWY_ATTR { return hn::Expm1(d, u); }));
  });
}
void sigmoid_float(Index count, const float* x, float* y) {
  apply(count, x, y, [](auto d, auto v) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(v))));
  });
}
void softplus_float(Index count, const float* x, float* y) {
  apply(count, x, y, [](auto d, auto v) HWY_ATTR {
    return hn::Add(hn::Max(v, hn::Zero(d)), hn::Log1p(d, exp_of(d, hn::Neg(hn::Abs(v)))));
  });
}
void cos_sin_float(Index count, float* x, float* sine) {
  apply(count, x, sine, [](auto d, auto v) HWY_ATTR { return hn::Sin(d, v); });
  apply(count, x, x, [](auto d, auto v) HWY_ATTR { return hn::Cos(d, v); });
}
#else
void exp_float(Index count, const float* x, float* y) {
  for (Index i = 0; i < count; ++i) y[i] = std::exp(x[i]);
}
void one_minus_exp_float(Index count, const float* x, float* y) {
  for (Index i = 0; i < count; ++i) y[i] = -std::expm1(-x[i]);
}
void sigmoid_float(Index count, const float* x, float* y) {
  for (Index i = 0; i < count; ++i) y[i] = 1.0f / (1.0f + std::exp(-x[i]));
}
void softplus_float(Index count, const float* x, float* y) {
  for (Index i = 0; i < count; ++i) y[i] = std::max(x[i], 0.0f) + std::log1p(std::exp(-std::abs(x[i])));
}
void cos_sin_float(Index count, float* x, float* sine) {
  for (Index i = 0; i < count; ++i) sine[i] = std::sin(x[i]);
  for (Index i = 0; i < count; ++i) x[i] = std::cos(x[i]);
}
#endif

}  // namespace
}  // namespace essh::cpu

#ifdef ESSH_HAVE_HWY
HWY_AFTER_NAMESPACE();
#endif

namespace essh::cpu {

void exp(Index count, const float* x, float* y) {
  exp_float(count, x, y);
}
void exp(Index count, const double* x, double* y) {
  for (Index i = 0; i < count; ++i) y[i] = std::exp(x[i]);
}

void exp_wide(Index count, const double* x, float* y) {
  constexpr Index kPiece = 64;
  float scale[kPiece];
  for (Index start = 0; start < count; start += kPiece) {
    const Index n = std::min(kPiece, count - start);
    for (Index i = 0; i < n; ++i) {
      // e^x = 2^k e^r: the reduction is exact in double, and r fits in a float.
      const double k = std::clamp(std::nearbyint(x[start + i] * std::numbers::log2e), -200.0, 127.0);
      y[start + i] = static_cast<float>(x[start + i] - k * std::numbers::ln2);
      const auto biased = std::max(static_cast<std::int32_t>(k) + 127, 0);
      scale[i] = std::bit_cast<float>(biased << 23);
    }
    exp_float(n, y + start, y + start);
    for (Index i = 0; i < n; ++i) y[start + i] *= scale[i];
  }
}
void exp_wide(Index count, const double* x, double* y) {
  exp(count, x, y);
}

void one_minus_exp(Index count, const float* x, float* y) {
  one_minus_exp_float(count, x, y);
}
void one_minus_exp(Index count, const double* x, double* y) {
  for (Index i = 0; i < count; ++i) y[i] = -std::expm1(-x[i]);
}

void sigmoid(Index count, const float* x, float* y) {
  sigmoid_float(count, x, y);
}
void sigmoid(Index count, const double* x, double* y) {
  for (Index i = 0; i < count; ++i) y[i] = 1.0 / (1.0 + std::exp(-x[i]));
}
void softplus(Index count, const float* x, float* y) {
  softplus_float(count, x, y);
}
void softplus(Index count, const double* x, double* y) {
  for (Index i = 0; i < count; ++i) y[i] = std::max(x[i], 0.0) + std::log1p(std::exp(-std::abs(x[i])));
}

void cos_sin(Index count, const double* angle, float* cosine, float* sine) {
  constexpr double kTurn = 2 * std::numbers::pi;
  for (Index i = 0; i < count; ++i) cosine[i] = static_cast<float>(angle[i] - std::nearbyint(angle[i] / kTurn) * kTurn);
  cos_sin_float(count, cosine, sine);
}
void cos_sin(Index count, const double* angle, double* cosine, double* sine) {
  for (Index i = 0; i < count; ++i) cosine[i] = std::cos(angle[i]);
  for (Index i = 0; i < count; ++i) sine[i] = std::sin(angle[i]);
}

}  // namespace essh::cpu
