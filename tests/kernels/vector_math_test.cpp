#include "essh/kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace essh {
namespace {

template <class T>
using Function = void (*)(Index, const T*, T*);

template <class T>
struct Case {
  const char* name;
  Function<T> function;
  long double (*exact)(long double);
};

long double exact_sigmoid(long double x) {
  return 1.0L / (1.0L + std::exp(-x));
}
long double exact_softplus(long double x) {
  return std::max(x, 0.0L) + std::log1p(std::exp(-std::abs(x)));
}
long double exact_exp(long double x) {
  return std::exp(x);
}
long double exact_one_minus_exp(long double x) {
  return -std::expm1(-x);
}

template <class T>
std::vector<Case<T>> cases() {
  return {{"exp", cpu::exp, exact_exp},
          {"sigmoid", cpu::sigmoid, exact_sigmoid},
          {"softplus", cpu::softplus, exact_softplus},
          {"one_minus_exp", cpu::one_minus_exp, exact_one_minus_exp}};
}

// Points over the whole range: dense where the functions vary, every power of two beyond and below, and the limits.
template <class T>
std::vector<T> points() {
  using Limits = std::numeric_limits<T>;
  std::vector<T> x;
  const double far = std::log(static_cast<double>(Limits::max())) * 1.25;
  for (int i = -20000; i <= 20000; ++i) x.push_back(static_cast<T>(far * i / 20000));
  for (int power = Limits::min_exponent - Limits::digits; power < Limits::max_exponent; ++power) {
    x.push_back(static_cast<T>(std::ldexp(1.1, power)));
    x.push_back(static_cast<T>(std::ldexp(-1.1, power)));
  }
  for (const T end : {T(0), Limits::max(), Limits::lowest(), Limits::infinity(), -Limits::infinity()}) x.push_back(end);
  return x;
}

template <class T>
class VectorMath : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(VectorMath, Types);

// `units` in the last place, or one smallest normal number: smaller results may be flushed to zero.
template <class T>
void expect_accurate(T value, long double exact, double units, const char* name, double x) {
  using Limits = std::numeric_limits<T>;
  if (exact > static_cast<long double>(Limits::max())) {
    EXPECT_GE(value, Limits::max()) << name << "(" << x << ")";
    return;
  }
  const long double allowed = std::max(static_cast<long double>(units * Limits::epsilon()) * std::abs(exact),
                                       static_cast<long double>(Limits::min()));
  EXPECT_LE(std::abs(static_cast<long double>(value) - exact), allowed) << name << "(" << x << ")";
}

TYPED_TEST(VectorMath, AccurateOverTheWholeRange) {
  using T = TypeParam;
  const auto x = points<T>();
  std::vector<T> y(x.size());
  for (const auto& one : cases<T>()) {
    one.function(static_cast<Index>(x.size()), x.data(), y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double exact = one.exact(static_cast<long double>(x[i]));
      if (exact < -static_cast<long double>(std::numeric_limits<T>::max())) {
        EXPECT_LE(y[i], std::numeric_limits<T>::lowest()) << one.name << "(" << x[i] << ")";
        continue;
      }
      expect_accurate(y[i], exact, 4, one.name, static_cast<double>(x[i]));
    }
  }
}

TYPED_TEST(VectorMath, NanComesOutAsNan) {
  using T = TypeParam;
  for (const auto& one : cases<T>()) {
    std::vector<T> x(19, T(NAN)), y(19, T(0));
    one.function(19, x.data(), y.data());
    for (const T value : y) EXPECT_TRUE(std::isnan(value)) << one.name;
  }
  std::vector<double> x(19, NAN);
  std::vector<T> y(19, T(0));
  cpu::exp_wide(19, x.data(), y.data());
  for (const T value : y) EXPECT_TRUE(std::isnan(value));
}

// Float result of a double argument: no digits are lost for large arguments.
TYPED_TEST(VectorMath, WideExponentialsKeepTheirDigits) {
  using T = TypeParam;
  std::vector<double> x;
  for (int i = -30000; i <= 30000; ++i)
    x.push_back(std::log(static_cast<double>(std::numeric_limits<T>::max())) * i / 29000);
  for (const double end : {0.0, 1e300, -1e300, HUGE_VAL, -HUGE_VAL}) x.push_back(end);
  std::vector<T> y(x.size());
  cpu::exp_wide(static_cast<Index>(x.size()), x.data(), y.data());
  for (std::size_t i = 0; i < x.size(); ++i)
    expect_accurate(y[i], std::exp(static_cast<long double>(x[i])), 2, "exp_wide", x[i]);
}

TYPED_TEST(VectorMath, RotationsOfLargeAnglesKeepTheirDigits) {
  using T = TypeParam;
  std::vector<double> angle;
  for (int i = -20000; i <= 20000; ++i) angle.push_back(i * 51.7);
  angle.push_back(1e-9);
  std::vector<T> cosine(angle.size()), sine(angle.size());
  cpu::cos_sin(static_cast<Index>(angle.size()), angle.data(), cosine.data(), sine.data());
  for (std::size_t i = 0; i < angle.size(); ++i) {
    const double allowed = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
    EXPECT_NEAR(static_cast<double>(cosine[i]), std::cos(angle[i]), allowed) << angle[i];
    EXPECT_NEAR(static_cast<double>(sine[i]), std::sin(angle[i]), allowed) << angle[i];
  }
}

template <class In, class T>
void expect_place_independent(const std::vector<In>& values, void (*function)(Index, const In*, T*), const char* name) {
  for (const In value : values) {
    T alone;
    function(1, &value, &alone);
    for (const Index count : {1, 7, 16, 33, 70}) {
      std::vector<In> x(static_cast<std::size_t>(count), In(0.5));
      for (Index at = 0; at < count; ++at) {
        x[static_cast<std::size_t>(at)] = value;
        std::vector<T> y(static_cast<std::size_t>(count));
        function(count, x.data(), y.data());
        EXPECT_EQ(std::memcmp(&y[static_cast<std::size_t>(at)], &alone, sizeof(T)), 0)
            << name << "(" << value << ") at " << at << " of " << count;
        x[static_cast<std::size_t>(at)] = In(0.5);
      }
    }
  }
}

TYPED_TEST(VectorMath, AResultDoesNotDependOnItsPlace) {
  using T = TypeParam;
  const std::vector<T> values = {T(-80.3), T(-1e-3), T(0.7), T(31.1), T(1e10)};
  for (const auto& one : cases<T>()) expect_place_independent<T, T>(values, one.function, one.name);
  expect_place_independent<double, T>({-80.3, -1e-3, 0.7, 31.1}, cpu::exp_wide, "exp_wide");
}

TYPED_TEST(VectorMath, NothingIsWrittenBeyondTheCount) {
  using T = TypeParam;
  for (const auto& one : cases<T>()) {
    for (Index count = 0; count < 40; ++count) {
      std::vector<T> y(41, T(7));
      const std::vector<T> x(41, T(0.25));
      one.function(count, x.data(), y.data());
      for (std::size_t i = static_cast<std::size_t>(count); i < y.size(); ++i) EXPECT_EQ(y[i], T(7)) << one.name;
    }
  }
}

}  // namespace
}  // namespace essh
