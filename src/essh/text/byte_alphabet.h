#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The printable stand-ins that GPT-2 gave each byte so that vocabularies can be written as text: 0x20 is "Ġ" (U+0120).
namespace essh {

// Bytes in the order of GPT-2's first 256 ids: the printable ones, then the others.
const std::array<std::uint8_t, 256>& gpt2_byte_order();
// The stand-in of each byte, a code point below 0x144.
char32_t byte_stand_in(std::uint8_t byte);

std::string to_byte_alphabet(std::string_view bytes);
// Nothing when a character is no stand-in.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace essh
