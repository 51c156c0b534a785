#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// GPT-2's byte alphabet: one printable character per byte, so that vocabularies are text. 0x20 is "Ġ" (U+0120).
namespace essh {

// Bytes in the order of GPT-2's first 256 ids: the printable ones, then the others.
const std::array<std::uint8_t, 256>& gpt2_byte_order();
// The character of each byte, a code point below 0x144.
char32_t byte_stand_in(std::uint8_t byte);

std::string to_byte_alphabet(std::string_view bytes);
// Empty if a character is not in the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace essh
