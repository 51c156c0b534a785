#include "essh/base/log.h"

#include <atomic>
#include <cstdio>

namespace essh::log {
namespace {
std::atomic<Level> current_level{Level::Normal};
}  // namespace

void set_level(Level level) {
  current_level = level;
}

Level level() {
  return current_level;
}

void write(Level level, std::string_view prefix, std::string_view message) {
  if (level > current_level.load()) return;
  // One call, so that lines of several threads do not mix. A failure has nowhere to be reported.
  const auto line = fmt::format("{}{}\n", prefix, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace essh::log
