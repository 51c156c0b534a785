#include "essh/store/problems.h"

#include "essh/base/error.h"

namespace essh {

void Problems::fail_if_any(std::string_view place) const {
  constexpr std::size_t kShown = 20;
  if (list_.empty()) return;
  if (list_.size() == 1) fail(ErrorKind::BadFile, "{}: {}", place, list_.front());
  std::string text = fmt::format("{}: {} problems", place, list_.size());
  for (std::size_t i = 0; i < list_.size() && i < kShown; ++i) text += fmt::format("\n  {}", list_[i]);
  if (list_.size() > kShown) text += fmt::format("\n  and {} more", list_.size() - kShown);
  fail(ErrorKind::BadFile, "{}", text);
}

}  // namespace essh
