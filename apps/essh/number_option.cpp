#include "apps/essh/number_option.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

namespace essh::verbs {
namespace {

// Bounds from here on guard against nonsense; naming them in the help would only distract.
constexpr std::int64_t kNamed = std::int64_t{1} << 24;

template <class Number>
bool parse(const std::string& text, Number& value) {
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc{} && rest == text.data() + text.size();
}

template <class Number>
CLI::Validator in_range(Number least, Number most, const char* kind, const std::string& range) {
  // The number goes on in plain decimal: CLI11 would read 010 as octal.
  return CLI::Validator(
      [=](std::string& text) {
        Number value{};
        if (!parse(text, value) || !(value >= least && value <= most))
          return fmt::format("must be {} from {} to {}, got \"{}\"", kind, least, most, text.substr(0, 40));
        text = fmt::format("{}", value);
        return std::string();
      },
      range);
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return in_range<std::int64_t>(least, most, "a whole number",
                                most < kNamed ? fmt::format("{}..{}", least, most) : fmt::format("from {}", least));
}

CLI::Validator any_seed() {
  return in_range<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max(), "a whole number", "from 0");
}

CLI::Validator real_number(double least, double most) {
  return in_range<double>(least, most, "a number", fmt::format("{}..{}", least, most));
}

}  // namespace essh::verbs
