#include "essh/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "essh/base/error.h"

namespace essh {
namespace {
std::string scaled(double value, const std::array<const char*, 5>& names) {
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < names.size()) {
    value /= 1000.0;
    ++unit;
  }
  const int digits = unit == 0 ? 0 : std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, names[unit]);
}
}  // namespace

std::string format_bytes(double bytes) {
  return scaled(bytes, {"B", "kB", "MB", "GB", "TB"});
}

std::string format_count(double count) {
  auto text = scaled(count, {"", "k", "M", "B", "T"});
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
}

double parse_milliseconds(std::string_view text, std::string_view place) {
  double value = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  const double scale = unit.empty() || unit == "ms" ? 1 : unit == "s" ? 1e3 : unit == "us" ? 1e-3 : 0;
  if (status != std::errc{} || scale == 0 || !(value > 0 && value < 1e12))
    fail(ErrorKind::Usage, "{}: \"{}\" is not a time; write it as 20ms, 0.5s or 800us", place, text.substr(0, 40));
  return value * scale;
}

std::uint64_t parse_bytes(std::string_view text, std::string_view place) {
  double value = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(rest, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  static constexpr std::array<std::pair<const char*, double>, 14> kUnits{{{"", 1.0},
                                                                          {"b", 1.0},
                                                                          {"k", 1e3},
                                                                          {"kb", 1e3},
                                                                          {"m", 1e6},
                                                                          {"mb", 1e6},
                                                                          {"g", 1e9},
                                                                          {"gb", 1e9},
                                                                          {"t", 1e12},
                                                                          {"tb", 1e12},
                                                                          {"kib", 1024.0},
                                                                          {"mib", 1048576.0},
                                                                          {"gib", 1073741824.0},
                                                                          {"tib", 1099511627776.0}}};
  const auto* found =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& entry) { return unit == entry.first; });
  if (status != std::errc{} || found == kUnits.end() || !(value >= 0) || value * found->second > 9e18) {
    fail(ErrorKind::Usage, "{}: \"{}\" is not a size; write it as 4096, 300MB or 1.5GiB", place, text.substr(0, 40));
  }
  return static_cast<std::uint64_t>(value * found->second);
}

}  // namespace essh
