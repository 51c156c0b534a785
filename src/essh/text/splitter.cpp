#include "essh/text/splitter.h"

#include <array>
#include <cstdint>

#include "essh/text/unicode_classes.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

constexpr std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> table{};
  for (int c = 'a'; c <= 'z'; ++c) table[static_cast<std::size_t>(c)] = CharClass::Letter;
  for (int c = 'A'; c <= 'Z'; ++c) table[static_cast<std::size_t>(c)] = CharClass::Letter;
  for (int c = '0'; c <= '9'; ++c) table[static_cast<std::size_t>(c)] = CharClass::Number;
  for (const char c : {'\t', '\n', '\v', '\f', '\r', ' '}) table[static_cast<std::size_t>(c)] = CharClass::Space;
  return table;
}
constexpr auto kAscii = ascii_classes();

struct Char {
  CharClass kind;
  std::size_t length;
};

inline Char char_at(std::string_view text, std::size_t at) {
  const auto byte = static_cast<std::uint8_t>(text[at]);
  if (byte < 128) return {kAscii[byte], 1};
  const Utf8Char found = utf8_char(text, at);
  return {found.valid ? char_class(found.code) : CharClass::Other, found.length};
}

inline std::size_t run_end(std::string_view text, std::size_t at, CharClass kind) {
  while (at < text.size()) {
    const Char next = char_at(text, at);
    if (next.kind != kind) break;
    at += next.length;
  }
  return at;
}

inline bool is_newline(char c) {
  return c == '\n' || c == '\r';
}

// \s+(?!\S)|\s+ : the last of several spaces goes with the following word.
std::size_t space_end(std::string_view text, std::size_t begin, std::size_t run) {
  if (run == text.size()) return run;
  const std::size_t last = utf8_previous(text, run);
  return last > begin ? last : run;
}

// The length of 's|'t|'re|'ve|'m|'ll|'d at an apostrophe, or 0.
std::size_t contraction(std::string_view text, std::size_t begin) {
  if (begin + 1 >= text.size()) return 0;
  const char second = text[begin + 1];
  if (second == 's' || second == 't' || second == 'm' || second == 'd') return 2;
  if (begin + 2 >= text.size()) return 0;
  const char third = text[begin + 2];
  return (second == 'r' && third == 'e') || (second == 'v' && third == 'e') || (second == 'l' && third == 'l') ? 3 : 0;
}

// The same, ignoring case; U+017F, the long s, folds to s.
std::size_t contraction_of_any_case(std::string_view text, std::size_t begin) {
  if (text.substr(begin + 1, 2) == "\xC5\xBF") return 3;
  char folded[3];
  std::size_t length = 0;
  for (; length < 3 && begin + length < text.size(); ++length) {
    const char c = text[begin + length];
    folded[length] = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return contraction(std::string_view(folded, length), 0);
}

}  // namespace

std::size_t gpt2_word_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const std::size_t length = contraction(text, begin)) return begin + length;
  }
  Char first = char_at(text, begin);
  std::size_t at = begin + first.length;
  if (text[begin] == ' ' && at < text.size()) {
    const Char second = char_at(text, at);
    if (second.kind != CharClass::Space) {
      first = second;
      at += second.length;
    }
  }
  const std::size_t run = run_end(text, at, first.kind);
  return first.kind == CharClass::Space ? space_end(text, begin, run) : run;
}

std::size_t llama3_word_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const std::size_t length = contraction_of_any_case(text, begin)) return begin + length;
  }
  const Char first = char_at(text, begin);
  std::size_t at = begin + first.length;
  if (first.kind == CharClass::Letter) return run_end(text, at, CharClass::Letter);
  if (first.kind == CharClass::Number) {
    for (int digits = 1; digits < 3 && at < text.size(); ++digits) {
      const Char next = char_at(text, at);
      if (next.kind != CharClass::Number) break;
      at += next.length;
    }
    return at;
  }
  CharClass second = CharClass::Space;
  if (at < text.size() && !is_newline(text[begin])) {
    const Char next = char_at(text, at);
    second = next.kind;
    if (second == CharClass::Letter) return run_end(text, at + next.length, CharClass::Letter);
  }
  if (first.kind == CharClass::Other || (text[begin] == ' ' && second == CharClass::Other)) {
    at = run_end(text, at, CharClass::Other);
    while (at < text.size() && is_newline(text[at])) ++at;
    return at;
  }
  const std::size_t run = run_end(text, at, CharClass::Space);
  for (std::size_t end = run; end > begin; --end) {
    if (is_newline(text[end - 1])) return end;
  }
  return space_end(text, begin, run);
}

std::size_t number_run_end(std::string_view text, std::size_t begin) {
  const bool number = char_at(text, begin).kind == CharClass::Number;
  std::size_t at = begin;
  while (at < text.size()) {
    const Char next = char_at(text, at);
    if ((next.kind == CharClass::Number) != number) break;
    at += next.length;
  }
  return at;
}

}  // namespace essh
