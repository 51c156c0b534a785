#include "essh/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace essh {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  std::erase(strings_, std::string());
}

std::string StopStrings::add(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  auto end = std::string::npos;
  for (const auto& string : strings_) end = std::min(end, held_.find(string));
  if (end != std::string::npos) {
    found_ = true;
    return held_.substr(0, end);
  }
  // Holds back the longest suffix that is a prefix of a stop string.
  std::size_t kept = 0;
  for (const auto& string : strings_) {
    for (std::size_t size = std::min(string.size() - 1, held_.size()); size > kept; --size) {
      if (held_.compare(held_.size() - size, size, string, 0, size) == 0) kept = size;
    }
  }
  auto shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::flush() {
  return found_ ? std::string() : std::exchange(held_, {});
}

}  // namespace essh
