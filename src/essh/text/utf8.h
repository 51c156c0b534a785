#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace essh {

// U+FFFD, the replacement for bytes that are not UTF-8.
inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";

struct Utf8Char {
  char32_t code;       // meaningful when valid
  std::size_t length;  // bytes, at least 1
  bool valid;
  bool cut;  // ill-formed only because the text ends here
};

// The character that starts at text[begin], begin < text.size(). Ill-formed bytes are grouped as Unicode recommends:
// the longest prefix of a well-formed character, or one byte.
Utf8Char utf8_char(std::string_view text, std::size_t begin);
// Start of the character that ends before text[end], end > 0; end - 1 for ill-formed bytes.
std::size_t utf8_previous(std::string_view text, std::size_t end);

void append_utf8(std::string& text, char32_t code);
// Replaces each ill-formed sequence by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace essh
