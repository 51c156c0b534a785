#pragma once
#include <cstdint>

namespace essh {

// Character classes of the splitting patterns, as in Hugging Face tokenizers: \p{L}, \p{N}, \s and others.
enum class CharClass : std::uint8_t { Other, Letter, Number, Space };

// Low two bits: a CharClass; bit 2: whether \w matches. 0 for invalid code points.
std::uint8_t unicode_class_bits(char32_t code);

inline CharClass char_class(char32_t code) {
  return static_cast<CharClass>(unicode_class_bits(code) & 3);
}
inline bool is_word_char(char32_t code) {
  return (unicode_class_bits(code) & 4) != 0;
}

}  // namespace essh
