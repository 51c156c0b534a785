#include "essh/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>

namespace essh::log {
namespace {
std::atomic<Level> current_level{Level::Normal};

spdlog::logger& logger() {
  static auto instance = [] {
    auto made = spdlog::stderr_logger_mt("essh");
    made->set_pattern("%v");
    return made;
  }();
  return *instance;
}
}  // namespace

void set_level(Level level) {
  current_level = level;
}

Level level() {
  return current_level;
}

void write(Level level, std::string_view prefix, std::string_view message) {
  if (level <= current_level.load()) logger().info("{}{}", prefix, message);
}

}  // namespace essh::log
