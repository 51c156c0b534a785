#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <iosfwd>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "essh/base/json_fwd.h"

namespace essh {

// A JSON value. Objects keep the order of their members. Reading a value as another kind is a bug of the caller, except
// where `at` and `get` say otherwise: check first, or use config/fields.h.
//
//   Json report = {{"tier", "T4"}, {"losses", {2.5, 2.25}}, {"teacher", nullptr}};
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;
  // Iterates over the values of an array or an object.
  template <class Value>
  class Cursor;

  Json() noexcept = default;
  Json(std::nullptr_t) noexcept {}
  Json(std::same_as<bool> auto value) noexcept : kind_(Kind::Bool) { data_.boolean = value; }
  template <std::integral T>
  requires(!std::same_as<T, bool>) Json(T value)
  noexcept : kind_(std::is_signed_v<T> ? Kind::Integer : Kind::Unsigned) {
    if constexpr (std::is_signed_v<T>)
      data_.integer = value;
    else
      data_.natural = value;
  }
  Json(std::floating_point auto value) noexcept : kind_(Kind::Real) { data_.real = static_cast<double>(value); }
  Json(std::string text);
  Json(std::string_view text);
  Json(const char* text);
  template <class T>
  Json(const std::vector<T>& values) : Json(array()) {
    for (const auto& value : values) push_back(Json(value));
  }
  // An object from a map.
  template <class Map>
  requires requires(const Map& map) {
    map.begin()->second;
    typename Map::mapped_type;
  }
  Json(const Map& map) : Json(object()) {
    for (const auto& [key, value] : map) append(key, Json(value));
  }
  // An object if each element is a list of a text and a value; an array otherwise.
  Json(std::initializer_list<Json> values);
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  static Json array();
  static Json array(std::initializer_list<Json> values);
  static Json object();

  bool is_null() const { return kind_ == Kind::Null; }
  bool is_boolean() const { return kind_ == Kind::Bool; }
  bool is_number() const { return is_number_integer() || kind_ == Kind::Real; }
  bool is_number_integer() const { return kind_ == Kind::Integer || kind_ == Kind::Unsigned; }
  // A non-negative integer.
  bool is_number_unsigned() const { return kind_ == Kind::Unsigned || (kind_ == Kind::Integer && data_.integer >= 0); }
  bool is_string() const { return kind_ == Kind::String; }
  bool is_array() const { return kind_ == Kind::Array; }
  bool is_object() const { return kind_ == Kind::Object; }

  // bool, a number (any kind of it, converted), std::string or std::string_view. Another kind is an Error.
  template <class T>
  T get() const {
    if constexpr (std::same_as<T, bool>)
      return as_bool();
    else if constexpr (std::floating_point<T>)
      return static_cast<T>(as_real());
    else if constexpr (std::unsigned_integral<T>)
      return static_cast<T>(as_unsigned());
    else if constexpr (std::integral<T>)
      return static_cast<T>(as_integer());
    else
      return T(text());
  }
  const std::string& text() const;
  const Array& elements() const;
  const Object& items() const;

  // Number of members of an array or an object; 0 for other kinds.
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  Cursor<Json> begin();
  Cursor<Json> end();
  Cursor<const Json> begin() const;
  Cursor<const Json> end() const;

  Json& operator[](std::integral auto index) { return value_at(static_cast<std::size_t>(index)); }
  const Json& operator[](std::integral auto index) const { return value_at(static_cast<std::size_t>(index)); }
  const Json& front() const { return value_at(0); }
  // Appends a null; a null value becomes an array.
  void push_back(Json value);

  // Linear search. Finds nothing in a value that is not an object.
  Cursor<Json> find(std::string_view key);
  Cursor<const Json> find(std::string_view key) const;
  bool contains(std::string_view key) const;
  // Adds a null member if the key is new; a null value becomes an object.
  Json& operator[](const std::convertible_to<std::string_view> auto& key) { return member(key); }
  const Json& operator[](const std::convertible_to<std::string_view> auto& key) const { return at(key); }
  // A missing key is an Error.
  const Json& at(std::string_view key) const;
  Json& at(std::string_view key);
  template <class T>
  T value(std::string_view key, T otherwise) const;
  // Appends without searching: the key must be new.
  Json& append(std::string key, Json value);
  void erase(std::string_view key);
  Cursor<Json> erase(const Cursor<Json>& where);
  // Copies the members of another object into this one.
  void update(const Json& other);

  // Numbers compare by value, objects member by member in their order.
  bool operator==(const Json& other) const;
  friend std::ostream& operator<<(std::ostream& out, const Json& value);

 private:
  enum class Kind : std::uint8_t { Null, Bool, Integer, Unsigned, Real, String, Array, Object };

  bool as_bool() const;
  std::int64_t as_integer() const;
  std::uint64_t as_unsigned() const;
  double as_real() const;
  Json& value_at(std::size_t index);
  const Json& value_at(std::size_t index) const;
  Json& member(std::string_view key);
  // Index of a key; size() if it is missing.
  std::size_t index_of(std::string_view key) const;

  Kind kind_ = Kind::Null;
  union {
    bool boolean;
    std::int64_t integer;
    std::uint64_t natural;
    double real;
    std::string* string;
    Array* array;
    Object* object;
  } data_{};

  friend class JsonWriter;
};

template <class Value>
class Json::Cursor {
 public:
  using value_type = Json;
  using difference_type = std::ptrdiff_t;
  using reference = Value&;
  using pointer = Value*;
  using iterator_category = std::forward_iterator_tag;

  Cursor(Value* owner, std::size_t index) : owner_(owner), index_(index) {}
  Value& operator*() const { return (*owner_)[index_]; }
  Value* operator->() const { return &**this; }
  const std::string& key() const { return owner_->items()[index_].first; }
  Cursor& operator++() {
    ++index_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return index_ == other.index_; }
  std::size_t index() const { return index_; }

 private:
  Value* owner_;
  std::size_t index_;
};

template <class T>
T Json::value(std::string_view key, T otherwise) const {
  const auto found = find(key);
  if (found == end()) return otherwise;
  if constexpr (std::same_as<T, Json>)
    return *found;
  else
    return found->get<T>();
}

struct JsonLimits {
  std::uint64_t bytes = 16u << 20;
  int depth = 64;
  std::uint64_t values = 8u << 20;  // objects, arrays and scalars
};

// Parses untrusted text. Refuses duplicate keys, deep nesting, trailing bytes, invalid UTF-8 and documents over the
// limits. Messages start with `place`.
Json parse_json(std::string_view text, std::string_view place, JsonLimits limits = {});
Json read_json(const std::filesystem::path& path, JsonLimits limits = {});

// Bytes that are not UTF-8 become U+FFFD, non-finite numbers become null.
std::string to_text(const Json& value, int indent = -1);

// Parser events, for documents too large to hold in memory.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void number(std::int64_t value) = 0;  // negative
  virtual void number(std::uint64_t value) = 0;
  virtual void number(double value) = 0;  // also integers of more than 64 bits
  virtual void string(std::string& value) = 0;
  virtual void begin_object() = 0;
  virtual void key(std::string& name) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  // Must throw.
  [[noreturn]] virtual void error(std::size_t byte) = 0;
};
void parse_json_events(std::string_view text, JsonEvents& events);

}  // namespace essh
