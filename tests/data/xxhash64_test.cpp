#include "essh/data/xxhash64.h"

#include <gtest/gtest.h>

#include <string>

namespace essh {
namespace {

TEST(XxHash64, PublishedValues) {
  EXPECT_EQ(xxhash64(std::string_view()), 0xef46db3751d8e999u);
  EXPECT_EQ(xxhash64("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(xxhash64("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(xxhash64("esshesshesshesshesshesshesshessh"), 0xfe75b226ec0b250cu);
  std::string counting;
  for (int i = 0; i < 101; ++i) counting += static_cast<char>(i);
  EXPECT_EQ(xxhash64(counting), 0xe99038495f85381eu);
}

TEST(XxHash64, AnyCutGivesTheSame) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37);
  const auto bytes = std::as_bytes(std::span(text));
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); second += 7) {
      XxHash64 hash;
      hash.update(bytes.first(first));
      hash.update(bytes.subspan(first, second - first));
      hash.update(bytes.subspan(second));
      ASSERT_EQ(hash.digest(), xxhash64(text));
    }
  }
}

}  // namespace
}  // namespace essh
