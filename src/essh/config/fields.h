#pragma once
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/spelling.h"
#include "essh/base/utf8.h"
#include "essh/config/field.h"

namespace essh {

namespace detail {

template <class T>
inline constexpr bool is_list = false;
template <class T>
inline constexpr bool is_list<std::vector<T>> = true;
// Null means empty.
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

// Typed access to JSON. Wrong kinds, fractions for integers and values out of range are errors that name the place.
template <class T>
T json_value(const Json& value, const Field& field, const std::string& place) {
  const auto out_of_range = [&](auto number) {
    fail(ErrorKind::BadFile, "{} must be between {} and {}, got {}", place, field.min, field.max, number);
  };
  if constexpr (std::same_as<T, bool>) {
    if (!value.is_boolean()) fail(ErrorKind::BadFile, "{} must be true or false", place);
    return value.get<bool>();
  } else if constexpr (std::integral<T>) {
    if (!value.is_number_integer()) fail(ErrorKind::BadFile, "{} must be a whole number", place);
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                                 : std::in_range<T>(value.get<std::int64_t>());
    if (!fits) fail(ErrorKind::BadFile, "{} is too {}", place, value.get<double>() < 0 ? "small" : "large");
    const auto number = value.get<T>();
    if (static_cast<double>(number) < field.min || static_cast<double>(number) > field.max) out_of_range(number);
    return number;
  } else if constexpr (std::floating_point<T>) {
    if (!value.is_number()) fail(ErrorKind::BadFile, "{} must be a number", place);
    const auto number = value.get<T>();
    if (!std::isfinite(number)) fail(ErrorKind::BadFile, "{} is too large", place);
    if (!(static_cast<double>(number) >= field.min && static_cast<double>(number) <= field.max)) out_of_range(number);
    return number;
  } else if constexpr (std::same_as<T, std::string>) {
    if (!value.is_string()) fail(ErrorKind::BadFile, "{} must be a string", place);
    return value.get<std::string>();
  } else {
    static_assert(is_list<T>);
    if (!value.is_array()) fail(ErrorKind::BadFile, "{} must be a list", place);
    T list;
    for (std::size_t i = 0; i < value.size(); ++i) {
      list.push_back(json_value<typename T::value_type>(value[i], field, fmt::format("{}[{}]", place, i)));
    }
    return list;
  }
}

struct JsonReader {
  const Json& object;
  std::string place;
  std::vector<std::string> known{};

  template <class T>
  void operator()(const char* name, T& member, const Field& field) {
    known.emplace_back(name);
    const auto found = object.find(name);
    if (found == object.end()) {
      if (field.required) fail(ErrorKind::BadFile, "{}: {} is missing", place, name);
      return;
    }
    const std::string where = fmt::format("{}: {}", place, name);
    if constexpr (requires(JsonReader & reader) { fields(reader, member); }) {
      if (!found->is_object()) fail(ErrorKind::BadFile, "{} must be an object", where);
      JsonReader nested{*found, where};
      fields(nested, member);
      nested.reject_unknown();
    } else if constexpr (is_optional<T>) {
      member.reset();
      if (!found->is_null()) member = json_value<typename T::value_type>(*found, field, where);
    } else {
      member = json_value<T>(*found, field, where);
    }
  }

  void reject_unknown() const {
    for (const auto& [key, value] : object.items()) {
      bool listed = false;
      for (const auto& name : known) listed = listed || name == key;
      if (!listed) fail(ErrorKind::BadFile, "{}: unknown key {}{}", place, in_quotes(key), suggestion(key, known));
    }
  }
};

struct JsonWriter {
  Json object = Json::object();

  template <class T>
  void operator()(const char* name, T& member, const Field&) {
    if constexpr (requires(JsonWriter & writer) { fields(writer, member); }) {
      JsonWriter nested;
      fields(nested, member);
      object[name] = nested.object;
    } else if constexpr (is_optional<T>) {
      object[name] = member ? Json(*member) : Json();
    } else {
      object[name] = member;
    }
  }
};

struct HelpWriter {
  std::string text;
  std::string prefix;

  template <class T>
  void operator()(const char* name, T& member, const Field& field) {
    if constexpr (requires(HelpWriter & writer) { fields(writer, member); }) {
      HelpWriter nested{{}, prefix + name + "."};
      fields(nested, member);
      text += nested.text;
    } else {
      text += fmt::format("  {:<34} {} (default {})\n", prefix + name, field.help, to_text(Json(member)));
    }
  }
};

}  // namespace detail

enum class UnknownKeys { Reject, Ignore };

// Reads the fields of `value` from a JSON object; keys that are absent keep their defaults unless required.
template <class T>
void read_fields(T& value, const Json& object, const std::string& place, UnknownKeys unknown = UnknownKeys::Reject) {
  if (!object.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
  detail::JsonReader reader{object, place};
  fields(reader, value);
  if (unknown == UnknownKeys::Reject) reader.reject_unknown();
}

template <class T>
Json write_fields(const T& value) {
  detail::JsonWriter writer;
  T copy = value;
  fields(writer, copy);
  return writer.object;
}

template <class T>
std::string field_help(const T& defaults = {}) {
  detail::HelpWriter writer;
  T copy = defaults;
  fields(writer, copy);
  return writer.text;
}

}  // namespace essh
