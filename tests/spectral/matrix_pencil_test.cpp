#include "essh/spectral/matrix_pencil.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "essh/base/error.h"
#include "essh/base/rng.h"
#include "essh/spectral/hankel.h"
#include "tests/spectral/median.h"

namespace essh {
namespace {

std::vector<double> errors_of_first_24(int modes) {
  const HankelFilters filters = hankel_filters(2048, 24);
  std::vector<double> errors;
  for (int k = 0; k < 24; ++k) errors.push_back(fit_damped_modes(filters.filter(k), modes).error);
  return errors;
}

// Expects `value` to print as `expected` when rounded to its two digits.
#define EXPECT_TWO_DIGITS(value, expected) \
  EXPECT_NEAR(value, expected, 0.051 * std::pow(10.0, std::floor(std::log10(expected))))

TEST(MatrixPencil, EightModesAsInThePaper) {
  const auto errors = errors_of_first_24(8);
  EXPECT_TWO_DIGITS(median(errors), 0.59);
  EXPECT_TWO_DIGITS(errors[0], 1.4e-6);
  EXPECT_TWO_DIGITS(errors[3], 2.2e-4);
  EXPECT_TWO_DIGITS(errors[7], 0.036);
  EXPECT_TWO_DIGITS(errors[15], 0.75);
  EXPECT_TWO_DIGITS(errors[23], 0.81);
  EXPECT_EQ(std::ranges::max_element(errors.begin(), errors.begin() + 8) - errors.begin(), 7);
}

TEST(MatrixPencil, SixteenModesAsInThePaper) {
  const auto errors = errors_of_first_24(16);
  EXPECT_TWO_DIGITS(median(errors), 8.9e-6);
  EXPECT_TWO_DIGITS(errors[0], 2.4e-10);
  // 7.7482e-8; the paper rounds its own, less exact, value to 7.8e-8.
  EXPECT_TWO_DIGITS(errors[3], 7.75e-8);
  EXPECT_TWO_DIGITS(errors[7], 1.8e-6);
  EXPECT_TWO_DIGITS(errors[23], 0.56);
}

TEST(MatrixPencil, RecoversKnownModes) {
  const std::vector<DampedMode> truth = {
      {0.99, 0.4, 0.5, -0.25}, {0.99, -0.4, 0.5, 0.25}, {0.9, 0.0, -1.5, 0.0}, {0.5, std::numbers::pi, 2.0, 0.0}};
  const PencilFit fit = fit_damped_modes(response(truth, 200), 4);
  EXPECT_LT(fit.error, 1e-13);
  ASSERT_EQ(fit.modes.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(fit.modes[i].rho, truth[i].rho, 1e-10);
    EXPECT_NEAR(fit.modes[i].theta, truth[i].theta, 1e-10);
    EXPECT_NEAR(fit.modes[i].readout_cos, truth[i].readout_cos, 1e-10);
    EXPECT_NEAR(fit.modes[i].readout_sin, truth[i].readout_sin, 1e-10);
  }
}

TEST(MatrixPencil, ConjugatesAreTwoModesSlowestFirst) {
  const HankelFilters filters = hankel_filters(2048, 24);
  const PencilFit fit = fit_damped_modes(filters.filter(23), 8);
  ASSERT_EQ(fit.modes.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_LE(fit.modes[i].rho, kLargestDecay + 1e-15);
    if (i > 0) {
      EXPECT_LE(fit.modes[i].rho, fit.modes[i - 1].rho);
    }
    if (i % 2 == 1) {
      EXPECT_EQ(fit.modes[i].theta, -fit.modes[i - 1].theta);
      EXPECT_EQ(fit.modes[i].readout_cos, fit.modes[i - 1].readout_cos);
      EXPECT_EQ(fit.modes[i].readout_sin, -fit.modes[i - 1].readout_sin);
      EXPECT_GT(fit.modes[i - 1].theta, 0);
    }
  }
  EXPECT_DOUBLE_EQ(fit.modes[0].rho, kLargestDecay);
}

TEST(MatrixPencil, GrowingSignalIsClipped) {
  std::vector<double> signal;
  for (int t = 0; t < 64; ++t) signal.push_back(std::pow(1.1, t));
  const PencilFit fit = fit_damped_modes(signal, 1);
  EXPECT_DOUBLE_EQ(fit.modes[0].rho, kLargestDecay);
  EXPECT_EQ(fit.modes[0].theta, 0);
  EXPECT_LE(fit.error, 1);
}

// Fewer true modes than asked for: the spare poles are arbitrary but finite, and the fit stays exact.
TEST(MatrixPencil, SpareModesDoNoHarm) {
  std::vector<double> signal(100);
  signal[0] = 1;
  for (const int modes : {1, 5, 25}) {
    const PencilFit impulse = fit_damped_modes(signal, modes);
    ASSERT_EQ(impulse.modes.size(), static_cast<std::size_t>(modes));
    for (const DampedMode& mode : impulse.modes) {
      EXPECT_GE(mode.rho, 0.999 * kSmallestDecay);
      EXPECT_TRUE(std::isfinite(mode.readout_cos) && std::isfinite(mode.readout_sin));
    }
    EXPECT_LT(impulse.error, 1e-6);
  }
  EXPECT_LT(fit_damped_modes(std::vector<double>(64, 3.0), 6).error, 0.01);
}

// No smaller sketch captures the range of noise: the whole matrix is used.
TEST(MatrixPencil, NoiseIsProjected) {
  Rng rng(7);
  std::vector<double> signal(600);
  for (double& value : signal) value = rng.normal();
  const PencilFit fit = fit_damped_modes(signal, 12);
  EXPECT_LT(fit.error, 1);
  EXPECT_GT(fit.error, 0.5);
  const PencilFit again = fit_damped_modes(signal, 12);
  EXPECT_EQ(fit.error, again.error);
}

TEST(MatrixPencil, RefusesBadSignals) {
  std::vector<double> signal(40, 1.0);
  EXPECT_THROW(fit_damped_modes(signal, 0), Error);
  EXPECT_THROW(fit_damped_modes(signal, 11), Error);
  EXPECT_THROW(fit_damped_modes({}, 1), Error);
  EXPECT_THROW(fit_damped_modes(std::vector<double>(40), 1), Error);
  signal[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(fit_damped_modes(signal, 2), Error);
}

}  // namespace
}  // namespace essh
