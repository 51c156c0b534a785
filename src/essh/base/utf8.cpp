#include "essh/base/utf8.h"

#include <fmt/core.h>

#include <algorithm>

namespace essh {

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i), second = byte(i + 1);
    std::size_t length = 1;
    if (lead >= 0x80) {
      if (lead < 0xc2 || lead > 0xf4) return i;
      length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;   // no overlong forms
      const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;  // no surrogates, nothing past U+10FFFF
      if (second < low || second > high) return i;
      for (std::size_t k = 2; k < length; ++k) {
        if ((byte(i + k) & 0xc0u) != 0x80u) return i;
      }
    }
    i += length;
  }
  return std::nullopt;
}

bool has_control_character(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) return true;
    // In UTF-8 the C1 controls are C2 80 to C2 9F.
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) return true;
  }
  return false;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::size_t cut = std::min(kShown, text.size());
  while (cut > 0 && cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) --cut;
  std::string shown(text.substr(0, cut));
  if (has_control_character(shown) || first_invalid_utf8(shown)) {
    std::ranges::replace_if(
        shown, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  }
  std::ranges::replace(shown, '"', '\'');
  return fmt::format("\"{}{}\"", shown, cut < text.size() ? "..." : "");
}

}  // namespace essh
