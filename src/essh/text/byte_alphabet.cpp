#include "essh/text/byte_alphabet.h"

#include "essh/text/utf8.h"

namespace essh {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<std::uint8_t, 256> order{};
  std::array<char32_t, 256> stand_in{};
  std::array<std::int16_t, 0x144> byte{};
};

constexpr Tables make_tables() {
  Tables tables;
  for (auto& entry : tables.byte) entry = -1;
  std::size_t count = 0;
  char32_t spare = 0x100;
  for (const bool printable : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (is_printable(byte) != printable) continue;
      tables.order[count++] = static_cast<std::uint8_t>(byte);
      const char32_t code = printable ? static_cast<char32_t>(byte) : spare++;
      tables.stand_in[static_cast<std::size_t>(byte)] = code;
      tables.byte[code] = static_cast<std::int16_t>(byte);
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

}  // namespace

const std::array<std::uint8_t, 256>& gpt2_byte_order() {
  return kTables.order;
}

char32_t byte_stand_in(std::uint8_t byte) {
  return kTables.stand_in[byte];
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() + bytes.size() / 2);
  for (const char byte : bytes) append_utf8(text, byte_stand_in(static_cast<std::uint8_t>(byte)));
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = utf8_char(text, at);
    if (!found.valid || found.code >= kTables.byte.size() || kTables.byte[found.code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kTables.byte[found.code]));
    at += found.length;
  }
  return bytes;
}

}  // namespace essh
