#include "apps/essh/number_option.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>

namespace essh::verbs {
namespace {

// Bounds from here on only guard against nonsense and are not shown in the help.
constexpr std::int64_t kNamed = std::int64_t{1} << 24;

template <class Number>
bool parse(const std::string& text, Number& value) {
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc{} && rest == text.data() + text.size();
}

template <class Number>
std::string range_text(Number least, Number most) {
  if constexpr (std::is_integral_v<Number>) {
    if (std::cmp_greater_equal(most, kNamed)) return fmt::format("from {}", least);
  }
  return fmt::format("{}..{}", least, most);
}

template <class Number>
const char* type_of() {
  if constexpr (std::is_floating_point_v<Number>) return "FLOAT";
  return std::is_signed_v<Number> ? "INT" : "UINT";
}

template <class Number>
Binding bind_numbers(Number& value) {
  return {.type = type_of<Number>(),
          .list = false,
          .set = [&value](const std::vector<std::string>& words) { parse(words.front(), value); },
          .text = [&value] { return fmt::format("{}", value); }};
}

template <class Number>
Binding bind_numbers(std::vector<Number>& values) {
  return {.type = type_of<Number>(),
          .list = true,
          .set =
              [&values](const std::vector<std::string>& words) {
                values.resize(words.size());
                for (std::size_t i = 0; i < words.size(); ++i) parse(words[i], values[i]);
              },
          .text = [&values] { return fmt::format("[{}]", fmt::join(values, ",")); }};
}

}  // namespace

template <class T>
Option* add_number(Verb& verb, const std::string& names, T& value, const std::string& help,
                   std::type_identity_t<typename NumberOf<T>::Type> least,
                   std::type_identity_t<typename NumberOf<T>::Type> most) {
  using Number = typename NumberOf<T>::Type;
  const auto check = [=](std::string& text) {
    Number number{};
    if (parse(text, number) && number >= least && number <= most) return std::string();
    return fmt::format("must be {} from {} to {}, got \"{}\"",
                       std::is_integral_v<Number> ? "a whole number" : "a number", least, most, text.substr(0, 40));
  };
  return verb.add_bound(names, bind_numbers(value), help)->transform(check, range_text<Number>(least, most));
}

#define ESSH_NUMBER(T)                                                              \
  template Option* add_number<T>(Verb&, const std::string&, T&, const std::string&, \
                                 std::type_identity_t<typename NumberOf<T>::Type>,  \
                                 std::type_identity_t<typename NumberOf<T>::Type>);
ESSH_NUMBER(int)
ESSH_NUMBER(std::int64_t)
ESSH_NUMBER(std::uint64_t)
ESSH_NUMBER(float)
ESSH_NUMBER(double)
ESSH_NUMBER(std::vector<std::int32_t>)
ESSH_NUMBER(std::vector<std::int64_t>)
ESSH_NUMBER(std::vector<double>)
#undef ESSH_NUMBER

Option* add_seed(Verb& verb, std::uint64_t& value, const std::string& help) {
  return add_number(verb, "--seed", value, help, 0, std::numeric_limits<std::uint64_t>::max())->capture_default_str();
}

}  // namespace essh::verbs
