#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace essh {

// Ends a stream of text before the first of some strings, wherever the pieces of the stream are cut. Text that may
// still become one of them is held back. What it gives, put together, is the stream up to the string found first.
class StopStrings {
 public:
  // Empty strings are left out.
  explicit StopStrings(std::vector<std::string> strings);

  // The text that may be shown now; nothing once a string was found.
  std::string add(std::string_view piece);
  // What was held back, at the end of the stream.
  std::string flush();
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace essh
