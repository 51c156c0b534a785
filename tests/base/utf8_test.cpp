#include "essh/base/utf8.h"

#include <gtest/gtest.h>

namespace essh {
namespace {

TEST(Utf8, FindsTheFirstBadByte) {
  for (const std::string_view good : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf",
                                      "\xed\x9f\xbf", "\xee\x80\x80"}) {
    EXPECT_EQ(first_invalid_utf8(good), std::nullopt) << good;
  }
  for (const std::string_view bad : {"\x80", "\xc0\xaf", "\xc1\xbf", "\xc3", "\xe2\x82", "\xe0\x9f\xbf", "\xed\xa0\x80",
                                     "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(first_invalid_utf8("ab" + std::string(bad) + "cd"), 2u);
  }
}

TEST(Utf8, ControlCharacters) {
  for (const std::string_view text : {"\n", "a\x1b[2J", "\x7f", "\xc2\x9b"}) EXPECT_TRUE(has_control_character(text));
  for (const std::string_view text : {"", "a b", "\xc2\xa0", "\xc3\x82"}) EXPECT_FALSE(has_control_character(text));
}

TEST(Utf8, QuotedTextIsHarmless) {
  EXPECT_EQ(in_quotes("caf\xc3\xa9"), "\"caf\xc3\xa9\"");
  EXPECT_EQ(in_quotes("a\n\"b\xff"), "\"a?'b?\"");
  EXPECT_EQ(in_quotes(std::string(79, 'x') + "\xc3\xa9"), "\"" + std::string(79, 'x') + "...\"");
}

}  // namespace
}  // namespace essh
