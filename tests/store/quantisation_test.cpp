#include "essh/store/quantisation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/base/error.h"
#include "essh/base/rng.h"

namespace essh {
namespace {

constexpr Quantisation kAll[] = {Quantisation::Q8, Quantisation::Q4, Quantisation::FP8};

struct Row {
  std::vector<std::byte> codes;
  std::vector<BFloat16> scales;
  std::vector<float> back;

  Row(Quantisation quantisation, std::span<const float> values)
      : codes(static_cast<std::size_t>(code_bytes(quantisation, std::ssize(values)))),
        scales(static_cast<std::size_t>(scale_count(std::ssize(values)))),
        back(values.size()) {
    quantise_row(quantisation, values, codes, scales);
    dequantise_row(quantisation, codes, scales, back);
  }
};

TEST(Quantisation, ErrorsAreHalfAStepOfTheGroup) {
  Rng rng(4);
  for (const auto quantisation : kAll) {
    // Whole groups, a partial group, an odd number of columns; widely different magnitudes.
    for (const std::size_t columns : {1u, 31u, 32u, 33u, 64u, 97u}) {
      for (const double size : {1e-38, 1e-6, 1.0, 1e30}) {
        std::vector<float> values(columns);
        for (auto& x : values) x = static_cast<float>(size * rng.normal());
        const Row row(quantisation, values);
        for (std::size_t c = 0; c < columns; ++c) {
          const double scale = static_cast<double>(static_cast<float>(row.scales[c / 32]));
          const double exact = static_cast<double>(values[c]),
                       apart = std::abs(static_cast<double>(row.back[c]) - exact);
          // fp8 steps are at most a sixteenth of a value, and 2^-9 near zero.
          const double step = quantisation == Quantisation::FP8 ? std::max(std::abs(exact) / 8, scale * 0x1p-9) : scale;
          ASSERT_LE(apart, 0.5001 * step) << quantisation_name(quantisation) << ", " << columns << ", " << size;
        }
      }
    }
  }
}

TEST(Quantisation, ZerosStayZeroAndTheLargestIsNotCutOff) {
  for (const auto quantisation : kAll) {
    std::vector<float> values(40, 0.0f);
    for (const float x : Row(quantisation, values).back) EXPECT_EQ(x, 0.0f);
    values[3] = -0.777f;
    values[35] = 1e-40f;
    const Row row(quantisation, values);
    EXPECT_NEAR(row.back[3], -0.777f, 0.777 * (quantisation == Quantisation::Q4 ? 0.02 : 0.005))
        << quantisation_name(quantisation);
    for (std::size_t c = 0; c < 35; ++c) EXPECT_EQ(row.back[c] == 0.0f, c != 3) << c;
    values[7] = INFINITY;
    EXPECT_THROW(Row(quantisation, values), Error);
    values[7] = NAN;
    EXPECT_THROW(Row(quantisation, values), Error);
  }
}

// All codes of fp8 against their definition: sign, exponent of bias 7, three bits of mantissa.
TEST(Quantisation, EveryFp8CodeIsWhatItSays) {
  const BFloat16 one(1.0f);
  for (int bits = 0; bits < 256; ++bits) {
    const auto code = static_cast<std::byte>(bits);
    float value = 0;
    dequantise_row(Quantisation::FP8, {&code, 1}, {&one, 1}, {&value, 1});
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double exact =
        (exponent == 0 ? mantissa / 8.0 * std::pow(2.0, -6) : (1 + mantissa / 8.0) * std::pow(2.0, exponent - 7)) *
        (bits & 128 ? -1 : 1);
    EXPECT_EQ(static_cast<double>(value), exact) << bits;
    // The 448 beside the value sets the scale to one, so that its own code results.
    const std::vector<float> pair = {448.0f, value};
    EXPECT_EQ(std::to_integer<int>(Row(Quantisation::FP8, pair).codes[1]), bits);
  }
}

TEST(Quantisation, FourBitCodesLieTwoToAByte) {
  // Scale 1: the largest value is 7.
  std::vector<float> values = {7, -7, 0, 3, -1};
  const Row row(Quantisation::Q4, values);
  ASSERT_EQ(row.codes.size(), 3u);
  EXPECT_EQ(std::to_integer<int>(row.codes[0]), 15 | 1 << 4);
  EXPECT_EQ(std::to_integer<int>(row.codes[1]), 8 | 11 << 4);
  EXPECT_EQ(std::to_integer<int>(row.codes[2]), 7);
  EXPECT_EQ(row.back, values);
}

}  // namespace
}  // namespace essh
