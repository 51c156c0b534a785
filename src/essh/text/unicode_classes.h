#pragma once
#include <cstdint>

namespace essh {

// The classes that the splitting patterns name, as Hugging Face tokenizers sees them: \p{L}, \p{N}, \s and the rest.
enum class CharClass : std::uint8_t { Other, Letter, Number, Space };

// Low two bits: a CharClass; bit 2: whether \w takes it. 0 for what is no code point.
std::uint8_t unicode_class_bits(char32_t code);

inline CharClass char_class(char32_t code) {
  return static_cast<CharClass>(unicode_class_bits(code) & 3);
}
inline bool is_word_char(char32_t code) {
  return (unicode_class_bits(code) & 4) != 0;
}

}  // namespace essh
