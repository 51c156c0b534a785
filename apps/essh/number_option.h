#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace essh::verbs {

// Accepts decimal numbers within [least, most] alone: no NaN, no infinity, no wrapping, no octal. The range stands in
// the help behind the type.
CLI::Validator whole_number(std::int64_t least, std::int64_t most);
CLI::Validator any_seed();  // of 64 bits without a sign
CLI::Validator real_number(double least, double most);

template <class T>
struct NumberOf {
  using Type = T;
};
template <class T>
struct NumberOf<std::vector<T>> {
  using Type = T;
};

// An option, or a list of numbers, that takes values within a range. Every numeric option of a verb is made by this or
// by add_seed().
template <class T>
CLI::Option* add_number(CLI::App& verb, const std::string& names, T& value, const std::string& help,
                        std::type_identity_t<typename NumberOf<T>::Type> least,
                        std::type_identity_t<typename NumberOf<T>::Type> most) {
  using Number = typename NumberOf<T>::Type;
  auto* option = verb.add_option(names, value, help);
  if constexpr (std::is_floating_point_v<Number>) {
    option->transform(real_number(least, most));
  } else {
    option->transform(whole_number(static_cast<std::int64_t>(least), static_cast<std::int64_t>(most)));
  }
  return option;
}

inline CLI::Option* add_seed(CLI::App& verb, std::uint64_t& value, const std::string& help) {
  return verb.add_option("--seed", value, help)->transform(any_seed())->capture_default_str();
}

}  // namespace essh::verbs
