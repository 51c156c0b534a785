#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "essh/base/json_fwd.h"

namespace essh {

struct JsonLimits {
  std::uint64_t bytes = 16u << 20;
  int depth = 64;
  std::uint64_t values = 8u << 20;  // objects, arrays and scalars together
};

// Parses text from outside. Refuses duplicate keys, deep nesting, trailing bytes, invalid UTF-8 and documents over the
// limits; `place` starts the message.
Json parse_json(std::string_view text, std::string_view place, JsonLimits limits = {});
Json read_json(const std::filesystem::path& path, JsonLimits limits = {});

// Never throws on a string that is not UTF-8; such bytes become U+FFFD.
std::string to_text(const Json& value, int indent = -1);

}  // namespace essh
