#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace essh {

// U+FFFD, what replaces bytes that are not UTF-8 wherever text is shown.
inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t code;       // meaningful when valid
  std::size_t length;  // bytes, at least 1
  bool valid;
  bool cut;  // ill-formed only because the text ends here
};

// The character that starts at text[begin], begin < text.size(). Ill-formed bytes count in the pieces that Unicode
// advises: the longest start of a well-formed character, or one byte.
Utf8Char utf8_char(std::string_view text, std::size_t begin);
// Where the character that ends before text[end] starts, end > 0; for ill-formed bytes, one byte back.
std::size_t utf8_previous(std::string_view text, std::size_t end);

void append_utf8(std::string& text, char32_t code);
// Each ill-formed piece replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace essh
