#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "essh/device/cpu/stream.h"
#include "essh/kernels/reference/dual.h"
#include "tests/kernels/random_matrix.h"

namespace essh {

using FloatTypes = ::testing::Types<float, double>;

// Tolerance of a kernel over T against the reference, relative to max(1, |exact|).
template <class T>
inline constexpr double kTolerance = 1e-12;
template <>
inline constexpr double kTolerance<float> = 2e-6;

template <class T>
void expect_close(T value, double exact, const char* what, double slack = 1) {
  EXPECT_NEAR(static_cast<double>(value), exact, slack * kTolerance<T> * std::max(1.0, std::abs(exact))) << what;
}

// Compares `analytic` with the derivative of objective() along `input`, by dual numbers and by centred differences.
template <class T, class Objective>
void expect_gradient(T analytic, reference::Dual& input, const Objective& objective, const char* what,
                     double slack = 1) {
  input.slope = 1;
  const reference::Dual at_point = objective();
  input.slope = 0;
  expect_close(analytic, at_point.slope, what, slack);
  constexpr double kStep = 1e-6;
  const double at = input.value;
  input.value = at + kStep;
  const double above = objective().value;
  input.value = at - kStep;
  const double below = objective().value;
  input.value = at;
  // A difference quotient has the rounding error of the whole objective.
  const double scale = std::max({1.0, std::abs(at_point.slope), std::abs(at_point.value)});
  EXPECT_NEAR(static_cast<double>(analytic), (above - below) / (2 * kStep),
              std::max(1e-8, slack * kTolerance<T>) * scale)
      << what;
}

// Calls body(stream) with 1, 2 and 5 threads; the bits of the returned matrices must not depend on the number.
template <class Body>
void expect_same_bits_for_any_team(const Body& body) {
  cpu::Stream alone(1);
  const auto expected = body(alone);
  for (const int threads : {2, 5}) {
    cpu::Stream team(threads);
    const auto result = body(team);
    ASSERT_EQ(result.size(), expected.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      const auto &one = expected[i].storage, &many = result[i].storage;
      ASSERT_EQ(one.size(), many.size());
      EXPECT_EQ(std::memcmp(one.data(), many.data(), one.size() * sizeof(one[0])), 0)
          << "matrix " << i << " with " << threads << " threads";
    }
  }
}

}  // namespace essh
