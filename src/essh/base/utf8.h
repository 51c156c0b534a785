#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace essh {

// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629).
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

// C0, DEL or C1, in UTF-8.
bool has_control_character(std::string_view text);

// Untrusted text for a message: quoted, truncated to 80 bytes, without control characters or quotes.
std::string in_quotes(std::string_view text);

}  // namespace essh
