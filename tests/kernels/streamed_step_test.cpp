#include "essh/kernels/streamed_step.h"

#include <gtest/gtest.h>

namespace essh {
namespace {

TEST(StreamedStepTest, OnlySomeFormatsCombine) {
  EXPECT_TRUE(streamed_formats<float>(TileFormat::Plain, TileFormat::Plain));
  for (const auto format : {TileFormat::Q8, TileFormat::FP8, TileFormat::Q4}) {
    EXPECT_TRUE(streamed_formats<BFloat16>(format, format == TileFormat::Q4 ? TileFormat::Q8 : format));
    EXPECT_FALSE(streamed_formats<BFloat16>(format, TileFormat::Plain));
    EXPECT_FALSE(streamed_formats<BFloat16>(TileFormat::Plain, format));
    EXPECT_FALSE(streamed_formats<float>(format, format));
  }
}

}  // namespace
}  // namespace essh
