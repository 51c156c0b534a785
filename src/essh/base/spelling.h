#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace essh {

// The known name closest to a misspelt one, if one is close enough.
std::optional<std::string> nearest_name(std::string_view word, std::span<const std::string> known);
// ", did you mean \"x\"?" or nothing.
std::string suggestion(std::string_view word, std::span<const std::string> known);

}  // namespace essh
