#include "essh/store/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "essh/base/error.h"

namespace essh {
namespace {

template <class T>
std::vector<std::byte> encoded(DType dtype, std::vector<T> values) {
  std::vector<std::byte> stored(values.size() * dtype_size(dtype));
  encode_elements<T>(dtype, values, stored);
  return stored;
}

template <class T>
std::vector<T> decoded(DType dtype, const std::vector<std::byte>& stored) {
  std::vector<T> values(stored.size() / dtype_size(dtype));
  decode_elements<T>(dtype, stored, values);
  return values;
}

TEST(DType, NamesAreUniqueAndFoundAgain) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_name("BF17"), std::nullopt);
  EXPECT_EQ(dtype_size(DType::BF16), 2u);
  EXPECT_EQ(dtype_size(DType::F8_E4M3), 1u);
  EXPECT_EQ(dtype_size(DType::F64), 8u);
}

TEST(DType, EveryShortValueSurvivesTheWayThroughWiderTypes) {
  for (const auto dtype : {DType::BF16, DType::F16}) {
    std::vector<std::byte> all(2 * 65536);
    for (std::size_t i = 0; i < 65536; ++i) {
      all[2 * i] = static_cast<std::byte>(i);
      all[2 * i + 1] = static_cast<std::byte>(i >> 8);
    }
    const auto floats = decoded<float>(dtype, all);
    const auto from_float = encoded<float>(dtype, floats);
    const auto from_double = encoded<double>(dtype, decoded<double>(dtype, all));
    for (std::size_t i = 0; i < 65536; ++i) {
      if (std::isnan(floats[i])) continue;
      EXPECT_TRUE(from_float[2 * i] == all[2 * i] && from_float[2 * i + 1] == all[2 * i + 1]) << i;
      EXPECT_TRUE(from_double[2 * i] == all[2 * i] && from_double[2 * i + 1] == all[2 * i + 1]) << i;
    }
  }
}

TEST(DType, DoublesAreRoundedOnce) {
  // Just above the tie between two neighbours: rounding to float first would produce the tie and then round to even.
  const double above = 1.0 + 0x1p-8 + 0x1p-40, below = 1.0 + 3 * 0x1p-8 - 0x1p-40;
  EXPECT_EQ(decoded<double>(DType::BF16, encoded<double>(DType::BF16, {above, -above, below, 1.0 + 0x1p-8})),
            (std::vector<double>{1.0 + 0x1p-7, -(1.0 + 0x1p-7), 1.0 + 0x1p-7, 1.0}));
  const double half = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(decoded<double>(DType::F16, encoded<double>(DType::F16, {half, 1e300, -1e-300, 65519.999999999})),
            (std::vector<double>{1.0 + 0x1p-10, INFINITY, -0.0, 65504.0}));
}

TEST(DType, WiderAndEqualTypesAreExact) {
  const std::vector<float> values = {0.1f, -0.0f, 1e-45f, 3.4e38f, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(decoded<float>(DType::F64, encoded<float>(DType::F64, values)), values);
  EXPECT_EQ(decoded<float>(DType::F32, encoded<float>(DType::F32, values)), values);
  EXPECT_TRUE(std::isnan(decoded<float>(DType::F16, encoded<float>(DType::F16, {NAN}))[0]));
  EXPECT_TRUE(std::isnan(decoded<double>(DType::BF16, encoded<double>(DType::BF16, {NAN}))[0]));
}

TEST(DType, WrongSizesAndIntegersAreCaught) {
  std::vector<float> values(2);
  std::vector<std::byte> stored(8);
  EXPECT_THROW(decode_elements<float>(DType::BF16, stored, values), Error);
  EXPECT_THROW(decode_elements<float>(DType::I32, stored, values), Error);
  EXPECT_THROW(encode_elements<float>(DType::I32, values, stored), Error);
}

}  // namespace
}  // namespace essh
