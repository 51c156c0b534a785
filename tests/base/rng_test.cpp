#include "essh/base/rng.h"

#include <gtest/gtest.h>

#include "essh/base/bfloat16.h"

namespace essh {
namespace {

// Known answers of the Random123 distribution.
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Rng, SeekContinuesTheStream) {
  Rng whole(7, 3), part(7, 3);
  for (int i = 0; i < 9; ++i) whole.next();
  part.seek(9);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(whole.next(), part.next());
}

TEST(Rng, BitsOfAPositionAreThoseOfTheStream) {
  for (std::uint64_t position = 0; position < 9; ++position) {
    Rng rng(7, 3);
    rng.seek(position);
    EXPECT_EQ(random_bits(7, 3, position), rng.next64()) << position;
  }
}

TEST(Rng, NormalMoments) {
  Rng rng(1);
  double sum = 0, squares = 0;
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.01);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.02);
}

TEST(Float16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    Float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    const float value = static_cast<float>(half);
    if (value == value) {
      EXPECT_EQ(Float16(value).bits, half.bits) << bits;
    }
    BFloat16 brain;
    brain.bits = static_cast<std::uint16_t>(bits);
    const float wide = static_cast<float>(brain);
    if (wide == wide) {
      EXPECT_EQ(BFloat16(wide).bits, brain.bits) << bits;
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  EXPECT_EQ(static_cast<float>(Float16(1.0f + 0x1p-11f)), 1.0f);
  EXPECT_EQ(static_cast<float>(Float16(1.0f + 3 * 0x1p-11f)), 1.0f + 0x1p-9f);
  EXPECT_EQ(static_cast<float>(Float16(0x1p-25f)), 0.0f);
  EXPECT_EQ(static_cast<float>(Float16(0x1.8p-25f)), 0x1p-24f);
  EXPECT_EQ(static_cast<float>(Float16(65520.0f)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(BFloat16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(static_cast<float>(BFloat16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
}

}  // namespace
}  // namespace essh
