#include "essh/text/utf8.h"

#include <gtest/gtest.h>

#include "essh/text/unicode_classes.h"

namespace essh {
namespace {

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text = "x";
    append_utf8(text, code);
    const Utf8Char found = utf8_char(text, 1);
    ASSERT_TRUE(found.valid && found.code == code && found.length == text.size() - 1) << static_cast<unsigned>(code);
    ASSERT_EQ(utf8_previous(text, text.size()), 1u) << static_cast<unsigned>(code);
  }
}

TEST(Utf8, IllFormedPiecesAreThoseThatUnicodeAdvises) {
  const std::string bad = kReplacementChar.data();
  EXPECT_EQ(to_valid_utf8("a\x80z"), "a" + bad + "z");
  EXPECT_EQ(to_valid_utf8("\xF0\x9F\x98"), bad);                        // a cut character is one piece
  EXPECT_EQ(to_valid_utf8("\xF0\x9F(\xF0"), bad + "(" + bad);           //
  EXPECT_EQ(to_valid_utf8("\xC0\xAF"), bad + bad);                      // overlong
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(to_valid_utf8("\xF4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), bad + bad + bad + bad + "A");
  EXPECT_TRUE(utf8_char("\xE2\x82", 0).cut);
  EXPECT_FALSE(utf8_char("\xE2(", 0).cut);
}

TEST(UnicodeClasses, TrapsOfSplitters) {
  EXPECT_EQ(char_class(0x180E), CharClass::Other);  // no space since Unicode 6.3
  EXPECT_EQ(char_class(0x017F), CharClass::Letter);
  EXPECT_EQ(char_class(0x0085), CharClass::Space);
  EXPECT_EQ(char_class(0x3000), CharClass::Space);
  EXPECT_EQ(char_class(0x200B), CharClass::Other);
  EXPECT_EQ(char_class(0x00B2), CharClass::Number);
  EXPECT_EQ(char_class(0x0301), CharClass::Other);
  EXPECT_EQ(char_class(0x110000), CharClass::Other);
  EXPECT_TRUE(is_word_char('_') && is_word_char(0x0301) && !is_word_char(0x00B2) && !is_word_char('-'));
}

}  // namespace
}  // namespace essh
