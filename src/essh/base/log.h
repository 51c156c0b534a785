#pragma once
#include <fmt/core.h>

#include <string_view>

namespace essh::log {

enum class Level { Quiet, Normal, Verbose };
void set_level(Level level);
Level level();

// Standard error only: results go to standard output.
void write(Level level, std::string_view prefix, std::string_view message);

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::Normal, "", fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void detail(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::Verbose, "", fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::Quiet, "warning: ", fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace essh::log
