#include "essh/plot/ticks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace essh::plot {
namespace {

// Rounding may put a tick slightly outside the axis.
constexpr double kSlack = 1e-9;

std::string superscript(int exponent) {
  static constexpr std::string_view kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text;
  for (const char c : std::to_string(exponent)) text += c == '-' ? "⁻" : kDigits[c - '0'];
  return text;
}

// Shortest of fixed and power-of-ten notation that keeps `digits` significant digits.
std::string number(double value, int digits) {
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  if (magnitude >= 1e-3 && magnitude < 1e6) {
    const int decimals = std::max(0, digits - 1 - static_cast<int>(std::floor(std::log10(magnitude))));
    std::string text = fmt::format("{:.{}f}", magnitude, std::min(decimals, 12));
    if (text.find('.') != std::string::npos) {
      text.erase(text.find_last_not_of('0') + 1);
      if (text.back() == '.') text.pop_back();
    }
    return value < 0 ? "−" + text : text;
  }
  std::string text = fmt::format("{:.{}e}", magnitude, digits - 1);
  const auto split = text.find('e');
  std::string mantissa = text.substr(0, split);
  if (mantissa.find('.') != std::string::npos) {
    mantissa.erase(mantissa.find_last_not_of('0') + 1);
    if (mantissa.back() == '.') mantissa.pop_back();
  }
  const std::string power = "10" + superscript(std::stoi(text.substr(split + 1)));
  text = mantissa == "1" ? power : mantissa + "·" + power;
  return value < 0 ? "−" + text : text;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int count) {
  if (!(high > low) || !std::isfinite(high - low) || count < 1) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough * (1 - kSlack)) {
      step = factor * power;
      break;
    }
  const double first = std::ceil(low / step - kSlack);
  const double last = std::floor(high / step + kSlack);
  std::vector<double> ticks;
  for (double index = first; index <= last && ticks.size() < 100; ++index)
    ticks.push_back(index == 0 ? 0.0 : index * step);
  return ticks;
}

std::vector<double> log_ticks(double low, double high, int count) {
  if (!(low > 0) || !(high > low) || !std::isfinite(high) || count < 1) return {low};
  const int first = static_cast<int>(std::ceil(std::log10(low) - kSlack));
  const int last = static_cast<int>(std::floor(std::log10(high) + kSlack));
  const bool fine = std::log10(high / low) < 2;
  std::vector<double> ticks;
  if (fine) {
    for (int decade = first - 1; decade <= last; ++decade)
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10.0, decade);
        if (tick >= low * (1 - kSlack) && tick <= high * (1 + kSlack)) ticks.push_back(tick);
      }
    if (ticks.size() < 2) return linear_ticks(low, high, count);
    return ticks;
  }
  const int every = std::max(1, (last - first + count - 1) / count);
  for (int decade = first; decade <= last; ++decade)
    if (decade % every == 0) ticks.push_back(std::pow(10.0, decade));
  return ticks;
}

std::vector<std::string> tick_labels(const std::vector<double>& ticks, Scale scale) {
  std::vector<std::string> labels;
  if (scale == Scale::Log) {
    const bool far = std::ranges::any_of(ticks, [](double tick) { return tick < 1e-3 || tick >= 1e5; });
    for (const double tick : ticks) {
      const double exponent = std::round(std::log10(tick));
      const bool power = std::abs(tick / std::pow(10.0, exponent) - 1) < 1e-6;
      labels.push_back(far && power ? "10" + superscript(static_cast<int>(exponent)) : number(tick, 6));
    }
    return labels;
  }
  double largest = 0;
  for (const double tick : ticks) largest = std::max(largest, std::abs(tick));
  const double step = ticks.size() > 1 ? ticks[1] - ticks[0] : largest;
  const int digits = largest > 0 && step > 0 ? static_cast<int>(std::ceil(std::log10(largest / step) - kSlack)) + 2 : 2;
  for (const double tick : ticks) labels.push_back(number(tick, std::clamp(digits, 1, 15)));
  return labels;
}

}  // namespace essh::plot
