#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace essh {

// Ends a text stream before the first stop string, even if a string spans several pieces. Text that may become a stop
// string is held back. The concatenated output is the stream up to the first stop string.
class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(std::vector<std::string> strings);

  // Text that can be shown now; empty once a string was found.
  std::string add(std::string_view piece);
  // The text held back, at the end of the stream.
  std::string flush();
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace essh
