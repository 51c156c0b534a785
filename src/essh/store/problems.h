#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace essh {

// Collects all faults of a file or folder into one error.
class Problems {
 public:
  void add(std::string problem) { list_.push_back(std::move(problem)); }
  bool empty() const { return list_.empty(); }
  const std::vector<std::string>& list() const { return list_; }
  // An Error of kind BadFile that starts with `place` and lists the problems, the first 20 in full; nothing when empty.
  void fail_if_any(std::string_view place) const;

 private:
  std::vector<std::string> list_;
};

}  // namespace essh
