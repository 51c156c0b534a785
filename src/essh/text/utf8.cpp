#include "essh/text/utf8.h"

#include <cstdint>

namespace essh {
namespace {

// Valid second bytes after a lead byte (Unicode 15, table 3-7); further bytes are 80..BF.
struct Lead {
  std::uint8_t length;
  std::uint8_t low;
  std::uint8_t high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char utf8_char(std::string_view text, std::size_t begin) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[begin + i]); };
  const std::uint8_t first = byte(0);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {first, 1, true, false};
  if (lead.length == 0) return {0, 1, false, false};
  char32_t code = first & (0x7Fu >> lead.length);
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (begin + i >= text.size()) return {0, i, false, true};
    const std::uint8_t low = i == 1 ? lead.low : 0x80;
    const std::uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {0, i, false, false};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  return {code, lead.length, true, false};
}

std::size_t utf8_previous(std::string_view text, std::size_t end) {
  for (std::size_t length = 1; length <= 4 && length <= end; ++length) {
    const auto byte = static_cast<std::uint8_t>(text[end - length]);
    if ((byte & 0xC0) == 0x80) continue;
    const Utf8Char found = utf8_char(text, end - length);
    return found.valid && found.length == length ? end - length : end - 1;
  }
  return end - 1;
}

void append_utf8(std::string& text, char32_t code) {
  const auto tail = [&](int shift) { text.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3F))); };
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text.push_back(static_cast<char>(0xC0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    text.push_back(static_cast<char>(0xF0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Char found = utf8_char(bytes, at);
    text.append(found.valid ? bytes.substr(at, found.length) : kReplacementChar);
    at += found.length;
  }
  return text;
}

}  // namespace essh
