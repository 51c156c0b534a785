#include "essh/plot/xml.h"

#include <cstddef>
#include <cstdint>

namespace essh::plot {
namespace {

// The code point at the start of `text` and its length; length 0 if it is malformed.
struct CodePoint {
  std::uint32_t value = 0;
  std::size_t size = 0;
};

CodePoint decode(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {first, 1};
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc0 || first > 0xf7 || text.size() < size) return {};
  std::uint32_t value = first & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    value = (value << 6) | (next & 0x3fu);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[size]) return {};
  return {value, size};
}

bool allowed(std::uint32_t c) {
  return c == '\t' || c == '\n' || c == '\r' || (c >= 0x20 && c <= 0xd7ff) || (c >= 0xe000 && c <= 0xfffd) ||
         (c >= 0x10000 && c <= 0x10ffff);
}

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = decode(text);
    if (point.size == 0 || !allowed(point.value)) {
      out += "\xef\xbf\xbd";
      text.remove_prefix(point.size == 0 ? 1 : point.size);
      continue;
    }
    switch (point.value) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += text.substr(0, point.size);
    }
    text.remove_prefix(point.size);
  }
  return out;
}

}  // namespace essh::plot
