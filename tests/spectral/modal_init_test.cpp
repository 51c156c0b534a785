#include "essh/spectral/modal_init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>

#include "essh/base/error.h"
#include "essh/spectral/hankel.h"

namespace essh {
namespace {

constexpr int kChannels = 12;
constexpr int kModes = 6;
constexpr std::int64_t kLength = 512;

ModalTable make(ModalInit init, std::uint64_t seed = 1) {
  return make_modal_table(init, kChannels, kModes, seed, kLength);
}

std::vector<double> row(const std::vector<double>& values, int channel) {
  return {values.begin() + channel * kModes, values.begin() + (channel + 1) * kModes};
}

// One list of numbers per channel, equal exactly if the channels are equal.
std::vector<std::vector<double>> rows(const ModalTable& table) {
  std::vector<std::vector<double>> result;
  for (int k = 0; k < table.channels; ++k) {
    std::vector<double> all;
    for (const auto* part : {&table.decay, &table.frequency, &table.readout_cos, &table.readout_sin})
      for (const double value : row(*part, k)) all.push_back(value);
    result.push_back(all);
  }
  return result;
}

std::vector<double> sorted(std::vector<double> values) {
  std::ranges::sort(values);
  return values;
}

double norm_of(const ModalTable& table, int channel) {
  const auto values = response(table.channel(channel), kLength);
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

TEST(ModalInit, NamesRoundTrip) {
  const std::vector<std::string> names = {"hankel",   "random",       "non_oscillatory", "shuffled",
                                          "reversed", "uniform_1e-3", "uniform_1e-4",    "s4d_lin"};
  ASSERT_TRUE(std::ranges::equal(modal_init_names(), names));
  for (const auto& name : names) EXPECT_EQ(to_string(parse_modal_init(name)), name);
  EXPECT_EQ(parse_modal_init("s4d_lin"), ModalInit::S4dLin);
  try {
    parse_modal_init("hankle");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Usage);
    EXPECT_NE(std::string(error.what()).find("did you mean \"hankel\"?"), std::string::npos) << error.what();
  }
  EXPECT_THROW(parse_modal_init(""), Error);
}

TEST(ModalInit, RawDecayInvertsSoftplus) {
  for (const double rho : {1e-12, 1e-3, 0.5, 0.9, 0.9999, 1 - 1e-9, 1 - 1e-15}) {
    const double decay = decay_of_rho(rho);
    ASSERT_TRUE(std::isfinite(decay));
    // The distance from one must survive, not only rho.
    EXPECT_NEAR(std::log(rho_of_decay(decay)) / std::log(rho), 1, 1e-15 / std::min(1.0, 1 - rho) + 1e-14) << rho;
  }
  EXPECT_NEAR(decay_of_rho(0.5), 0, 1e-15);  // softplus(0) = log 2
  EXPECT_NEAR(decay_of_rho(1 - 1e-9), std::log(1e-9), 1e-6);
  EXPECT_GT(rho_of_decay(-800), 0.999999);
  EXPECT_EQ(rho_of_decay(800), 0);
}

TEST(ModalInit, HankelTableFitsTheFilters) {
  const ModalTable table = make(ModalInit::Hankel);
  const HankelFilters filters = hankel_filters(kLength, kChannels);
  ASSERT_EQ(table.decay.size(), static_cast<std::size_t>(kChannels * kModes));
  for (int k = 0; k < kChannels; ++k) {
    const PencilFit fit = fit_damped_modes(filters.filter(k), kModes);
    EXPECT_NEAR(relative_error(filters.filter(k), response(table.channel(k), kLength)), fit.error, 1e-11);
  }
  EXPECT_EQ(rows(make(ModalInit::Hankel, 2)), rows(table)) << "the fit does not depend on the seed";
}

TEST(ModalInit, ShuffledAndReversedMoveWholeChannels) {
  const auto fitted = rows(make(ModalInit::Hankel));
  auto reversed = rows(make(ModalInit::Reversed));
  std::ranges::reverse(reversed);
  EXPECT_EQ(reversed, fitted);

  const auto shuffled = rows(make(ModalInit::Shuffled));
  EXPECT_NE(shuffled, fitted);
  EXPECT_TRUE(std::ranges::is_permutation(shuffled, fitted));
  EXPECT_EQ(rows(make(ModalInit::Shuffled)), shuffled);
  EXPECT_NE(rows(make(ModalInit::Shuffled, 2)), shuffled);
}

TEST(ModalInit, RandomKeepsTheValuesAndTheScale) {
  const ModalTable fitted = make(ModalInit::Hankel);
  const ModalTable random = make(ModalInit::Random);
  EXPECT_EQ(sorted(random.decay), sorted(fitted.decay));
  EXPECT_EQ(sorted(random.frequency), sorted(fitted.frequency));
  EXPECT_NE(random.decay, fitted.decay);
  double mean_square = 0;
  for (int k = 0; k < kChannels; ++k) mean_square += std::pow(norm_of(fitted, k), 2) / kChannels;
  for (int k = 0; k < kChannels; ++k) EXPECT_NEAR(norm_of(random, k), std::sqrt(mean_square), 1e-9) << k;
  EXPECT_EQ(rows(make(ModalInit::Random)), rows(random));
  EXPECT_NE(rows(make(ModalInit::Random, 2)), rows(random));
}

TEST(ModalInit, NonOscillatoryIsSilent) {
  const ModalTable table = make(ModalInit::NonOscillatory);
  for (int k = 0; k < kChannels; ++k)
    for (const DampedMode& mode : table.channel(k)) {
      EXPECT_NEAR(mode.rho, std::exp(-0.01), 1e-15);
      EXPECT_EQ(mode.theta, 0);
      EXPECT_EQ(mode.readout_cos, 0);
      EXPECT_EQ(mode.readout_sin, 0);
    }
}

TEST(ModalInit, UniformChangesOnlyTheDecay) {
  const ModalTable fitted = make(ModalInit::Hankel);
  for (const auto& [init, gap] : {std::pair(ModalInit::Uniform1e3, 1e-3), std::pair(ModalInit::Uniform1e4, 1e-4)}) {
    const ModalTable table = make(init);
    for (const double decay : table.decay) EXPECT_NEAR((1 - rho_of_decay(decay)) / gap, 1, 1e-10);
    EXPECT_EQ(table.frequency, fitted.frequency);
    EXPECT_EQ(table.readout_cos, fitted.readout_cos);
    EXPECT_EQ(table.readout_sin, fitted.readout_sin);
  }
}

TEST(ModalInit, S4dLinHasOneStepPerChannel) {
  const ModalTable table = make(ModalInit::S4dLin);
  for (int k = 0; k < kChannels; ++k) {
    const auto modes = table.channel(k);
    const double step = -2 * std::log(modes[0].rho);
    EXPECT_GE(step, 1e-3 * (1 - 1e-12));
    EXPECT_LE(step, 1e-1);
    for (int n = 0; n < kModes; ++n) {
      const DampedMode& mode = modes[static_cast<std::size_t>(n)];
      EXPECT_DOUBLE_EQ(mode.rho, modes[0].rho);
      EXPECT_NEAR(mode.theta, std::numbers::pi * n * step, 1e-10);
      EXPECT_NE(mode.readout_cos, 0);
    }
  }
  EXPECT_NE(rows(make(ModalInit::S4dLin, 2)), rows(table));
  // Neither this nor the non-oscillatory initialisation needs filters, so any number of channels works.
  EXPECT_EQ(make_modal_table(ModalInit::S4dLin, 300, 2, 1).decay.size(), 600u);
}

TEST(ModalInit, RefusesImpossibleSizes) {
  EXPECT_THROW(make_modal_table(ModalInit::Hankel, 0, 8, 1), Error);
  EXPECT_THROW(make_modal_table(ModalInit::Hankel, 8, 0, 1), Error);
  EXPECT_THROW(make_modal_table(ModalInit::Hankel, 30, 4, 1, 16), Error);
  EXPECT_THROW(make_modal_table(ModalInit::Hankel, 4, 5, 1, 16), Error);
  EXPECT_THROW(make_modal_table(ModalInit::NonOscillatory, -1, 5, 1), Error);
  EXPECT_THROW(make_modal_table(ModalInit::S4dLin, 2'000'000'000, 2'000'000'000, 1), Error);
  EXPECT_EQ(make_modal_table(ModalInit::Hankel, 4, 4, 1, 16).channels, 4) << "a failure leaves nothing behind";
}

}  // namespace
}  // namespace essh
