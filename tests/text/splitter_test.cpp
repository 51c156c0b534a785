#include "essh/text/splitter.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/rng.h"
#include "essh/text/regex_splitter.h"
#include "essh/text/unicode_classes.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

using WordEnd = std::size_t (*)(std::string_view, std::size_t);

std::vector<std::string> words(WordEnd end_of, std::string_view text) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = end_of(text, begin);
    found.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return found;
}

using Words = std::vector<std::string>;

TEST(Splitter, Gpt2) {
  EXPECT_EQ(words(gpt2_word_end, "I'll  go,  don't\n\n x 12abc"),
            (Words{"I", "'ll", " ", " go", ",", " ", " don", "'t", "\n\n", " x", " 12", "abc"}));
  EXPECT_EQ(words(gpt2_word_end, "I'LL 's's   "), (Words{"I", "'", "LL", " '", "s", "'s", "   "}));
  EXPECT_EQ(words(gpt2_word_end, "a\t b"), (Words{"a", "\t", " b"}));
}

TEST(Splitter, Llama3) {
  EXPECT_EQ(words(llama3_word_end, "I'LL go!?\n\n  \n x 1234567"),
            (Words{"I", "'LL", " go", "!?\n\n", "  \n", " x", " ", "123", "456", "7"}));
  EXPECT_EQ(words(llama3_word_end, "'\xC5\xBF\xC5\xBFx \tb\t.c"),
            (Words{"'\xC5\xBF", "\xC5\xBFx", " ", "\tb", "\t", ".c"}));
  EXPECT_EQ(words(llama3_word_end, "a\xE3\x80\x80\xE3\x80\x80z"), (Words{"a", "\xE3\x80\x80", "\xE3\x80\x80z"}));
}

TEST(Splitter, BytesThatAreNoTextCountAsSymbols) {
  EXPECT_EQ(words(gpt2_word_end, "a\xFF\xFE b\xC3"), (Words{"a", "\xFF\xFE", " b", "\xC3"}));
  EXPECT_EQ(words(llama3_word_end, "\xFF\x61 \xED\xA0\x80\n"), (Words{"\xFF"
                                                                      "a",
                                                                      " \xED\xA0\x80\n"}));
}

// PCRE2's Unicode is older than our tables; characters that it classifies differently are left out of the comparison.
class Oracle {
 public:
  Oracle() : letter_("\\p{L}", false, "oracle"), number_("\\p{N}", false, "oracle"), space_("\\s", false, "oracle") {}

  bool agrees(char32_t code) const {
    std::string text;
    append_utf8(text, code);
    const auto is = [&](const RegexSplitter& regex) {
      std::vector<TextRange> found;
      regex.matches(text, found);
      return !found.empty();
    };
    const CharClass kind = char_class(code);
    return is(letter_) == (kind == CharClass::Letter) && is(number_) == (kind == CharClass::Number) &&
           is(space_) == (kind == CharClass::Space);
  }

 private:
  RegexSplitter letter_;
  RegexSplitter number_;
  RegexSplitter space_;
};

TEST(Splitter, AgreesWithPcre2) {
  std::optional<Oracle> oracle;
  try {
    oracle.emplace();
  } catch (const Error& error) {
    ASSERT_EQ(error.kind(), ErrorKind::Unsupported);
    GTEST_SKIP() << error.what();
  }
  // One character of each class in every block of 16, and ASCII characters often.
  std::vector<std::string> characters;
  for (char32_t code = 0; code < 0x110000; code += code < 0x400 ? 1 : 13) {
    if ((code >= 0xD800 && code < 0xE000) || !oracle->agrees(code)) continue;
    append_utf8(characters.emplace_back(), code);
  }
  ASSERT_GT(characters.size(), 70000u);
  const Words frequent = {" ",         "  ", "\n", "\r\n", "\t", "'",  "'s", "'S", "'ll",     "'vE",
                          "'\xC5\xBF", "a",  "B",  "xyz",  "7",  "12", ".",  "--", "\xC2\xA0"};
  Rng rng(17);
  for (const auto& [pattern, end_of] :
       {std::pair(kGpt2Pattern, &gpt2_word_end), std::pair(kLlama3Pattern, &llama3_word_end)}) {
    const RegexSplitter regex(pattern, false, "oracle");
    for (int round = 0; round < 20000; ++round) {
      std::string text;
      for (std::uint64_t i = 1 + rng.below(24); i > 0; --i) {
        text += rng.below(3) == 0 ? characters[rng.below(characters.size())] : frequent[rng.below(frequent.size())];
      }
      std::vector<TextRange> ranges;
      regex.matches(text, ranges);
      Words expected;
      for (const TextRange& range : ranges) expected.push_back(text.substr(range.begin, range.end - range.begin));
      ASSERT_EQ(words(end_of, text), expected) << pattern << "\n" << text;
    }
  }
}

TEST(RegexSplitter, RefusesBadPatternsAndCostlyOnes) {
  const auto message = [](std::string_view pattern, std::string_view text) -> std::string {
    try {
      std::vector<TextRange> found;
      RegexSplitter(pattern, false, "here").matches(text, found);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  if (message("x", "x") != "accepted") GTEST_SKIP() << "built without PCRE2";
  EXPECT_TRUE(message("(", "x").starts_with("here: the pattern is not a regular expression"));
  EXPECT_TRUE(message("", "x").starts_with("here: the pattern is empty"));
  EXPECT_TRUE(message(std::string(20000, 'x'), "x").starts_with("here: a pattern of 20000 bytes"));
  EXPECT_TRUE(message("(a+)+[bc]", std::string(64, 'a')).starts_with("here: the pattern fails on this text"));
  EXPECT_EQ(message("(?=x)\\K|", "xx"), "accepted");
}

}  // namespace
}  // namespace essh
