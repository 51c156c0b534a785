#include "essh/base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unordered_set>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/utf8.h"

namespace essh {
namespace {

[[noreturn]] void fail_kind(const char* wanted) {
  fail(ErrorKind::BadFile, "a JSON value is not {}", wanted);
}

}  // namespace

Json::Json(std::string text) : kind_(Kind::String) {
  data_.string = new std::string(std::move(text));
}
Json::Json(std::string_view text) : Json(std::string(text)) {}
Json::Json(const char* text) : Json(std::string(text)) {}

Json::Json(std::initializer_list<Json> values) {
  const bool pairs = std::all_of(values.begin(), values.end(), [](const Json& value) {
    return value.is_array() && value.size() == 2 && value.front().is_string();
  });
  if (!pairs) {
    *this = array(values);
    return;
  }
  *this = object();
  for (const auto& value : values) append(value[0].text(), value[1]);
}

Json::Json(const Json& other) : kind_(other.kind_), data_(other.data_) {
  switch (kind_) {
    case Kind::String:
      data_.string = new std::string(*other.data_.string);
      break;
    case Kind::Array:
      data_.array = new Array(*other.data_.array);
      break;
    case Kind::Object:
      data_.object = new Object(*other.data_.object);
      break;
    default:
      break;
  }
}

Json::Json(Json&& other) noexcept : kind_(std::exchange(other.kind_, Kind::Null)), data_(other.data_) {}

Json& Json::operator=(Json other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  return *this;
}

Json::~Json() {
  switch (kind_) {
    case Kind::String:
      delete data_.string;
      break;
    case Kind::Array:
      delete data_.array;
      break;
    case Kind::Object:
      delete data_.object;
      break;
    default:
      break;
  }
}

Json Json::array() {
  Json value;
  value.data_.array = new Array;
  value.kind_ = Kind::Array;
  return value;
}

Json Json::array(std::initializer_list<Json> values) {
  Json value = array();
  value.data_.array->assign(values);
  return value;
}

Json Json::object() {
  Json value;
  value.data_.object = new Object;
  value.kind_ = Kind::Object;
  return value;
}

bool Json::as_bool() const {
  if (!is_boolean()) fail_kind("true or false");
  return data_.boolean;
}

std::int64_t Json::as_integer() const {
  if (kind_ == Kind::Integer) return data_.integer;
  if (kind_ == Kind::Unsigned) return static_cast<std::int64_t>(data_.natural);
  if (kind_ == Kind::Real) return static_cast<std::int64_t>(data_.real);
  fail_kind("a number");
}

std::uint64_t Json::as_unsigned() const {
  return kind_ == Kind::Unsigned ? data_.natural : static_cast<std::uint64_t>(as_integer());
}

double Json::as_real() const {
  if (kind_ == Kind::Real) return data_.real;
  return kind_ == Kind::Unsigned ? static_cast<double>(data_.natural) : static_cast<double>(as_integer());
}

const std::string& Json::text() const {
  if (!is_string()) fail_kind("a string");
  return *data_.string;
}

const Json::Array& Json::elements() const {
  static const Array kNone;
  return is_array() ? *data_.array : kNone;
}

const Json::Object& Json::items() const {
  static const Object kNone;
  return is_object() ? *data_.object : kNone;
}

std::size_t Json::size() const {
  return is_object() ? data_.object->size() : elements().size();
}

Json::Cursor<Json> Json::begin() {
  return {this, 0};
}
Json::Cursor<Json> Json::end() {
  return {this, size()};
}
Json::Cursor<const Json> Json::begin() const {
  return {this, 0};
}
Json::Cursor<const Json> Json::end() const {
  return {this, size()};
}

const Json& Json::value_at(std::size_t index) const {
  ESSH_ASSERT(index < size());
  return is_object() ? (*data_.object)[index].second : (*data_.array)[index];
}
Json& Json::value_at(std::size_t index) {
  return const_cast<Json&>(std::as_const(*this).value_at(index));
}

void Json::push_back(Json value) {
  if (is_null()) *this = array();
  if (!is_array()) fail_kind("an array");
  data_.array->push_back(std::move(value));
}

std::size_t Json::index_of(std::string_view key) const {
  const auto& members = items();
  const auto found = std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.first == key; });
  return is_object() ? static_cast<std::size_t>(found - members.begin()) : size();
}
Json::Cursor<Json> Json::find(std::string_view key) {
  return {this, index_of(key)};
}
Json::Cursor<const Json> Json::find(std::string_view key) const {
  return {this, index_of(key)};
}
bool Json::contains(std::string_view key) const {
  return index_of(key) < size();
}

Json& Json::member(std::string_view key) {
  const auto index = index_of(key);
  return is_object() && index < size() ? value_at(index) : append(std::string(key), nullptr);
}

const Json& Json::at(std::string_view key) const {
  const auto index = index_of(key);
  if (index == size()) fail(ErrorKind::BadFile, "the JSON key {} is missing", in_quotes(key));
  return value_at(index);
}
Json& Json::at(std::string_view key) {
  return const_cast<Json&>(std::as_const(*this).at(key));
}

Json& Json::append(std::string key, Json value) {
  if (is_null()) *this = object();
  if (!is_object()) fail_kind("an object");
  return data_.object->emplace_back(std::move(key), std::move(value)).second;
}

void Json::erase(std::string_view key) {
  if (contains(key)) erase(find(key));
}

Json::Cursor<Json> Json::erase(const Cursor<Json>& where) {
  ESSH_ASSERT(where.index() < size());
  const auto offset = static_cast<std::ptrdiff_t>(where.index());
  if (is_object())
    data_.object->erase(data_.object->begin() + offset);
  else
    data_.array->erase(data_.array->begin() + offset);
  return {this, where.index()};
}

void Json::update(const Json& other) {
  for (const auto& [key, value] : other.items()) member(key) = value;
}

bool Json::operator==(const Json& other) const {
  if (is_number() && other.is_number()) {
    if (kind_ == Kind::Real || other.kind_ == Kind::Real) return as_real() == other.as_real();
    return is_number_unsigned() == other.is_number_unsigned() && as_unsigned() == other.as_unsigned();
  }
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::Bool:
      return data_.boolean == other.data_.boolean;
    case Kind::String:
      return *data_.string == *other.data_.string;
    case Kind::Array:
      return *data_.array == *other.data_.array;
    case Kind::Object:
      return *data_.object == *other.data_.object;
    default:
      return true;
  }
}

std::ostream& operator<<(std::ostream& out, const Json& value) {
  return out << to_text(value);
}

// Writes numbers and strings like nlohmann's library.
class JsonWriter {
 public:
  explicit JsonWriter(int indent) : indent_(indent) {}

  void write(const Json& value, int depth) {
    switch (value.kind_) {
      case Json::Kind::Null:
        out += "null";
        break;
      case Json::Kind::Bool:
        out += value.data_.boolean ? "true" : "false";
        break;
      case Json::Kind::Integer:
        out += std::to_string(value.data_.integer);
        break;
      case Json::Kind::Unsigned:
        out += std::to_string(value.data_.natural);
        break;
      case Json::Kind::Real:
        write_real(value.data_.real);
        break;
      case Json::Kind::String:
        write_string(*value.data_.string);
        break;
      case Json::Kind::Array:
        write_list('[', ']', *value.data_.array, depth, [&](const Json& element) { write(element, depth + 1); });
        break;
      case Json::Kind::Object:
        write_list('{', '}', *value.data_.object, depth, [&](const Json::Member& member) {
          write_string(member.first);
          out += indent_ < 0 ? ":" : ": ";
          write(member.second, depth + 1);
        });
        break;
    }
  }

  std::string out;

 private:
  template <class List, class Write>
  void write_list(char open, char close, const List& list, int depth, const Write& write_one) {
    out += open;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out += ',';
      new_line(depth + 1);
      write_one(list[i]);
    }
    if (!list.empty()) new_line(depth);
    out += close;
  }

  void new_line(int depth) {
    if (indent_ < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth), ' ');
  }

  void write_real(double value) {
    if (!std::isfinite(value)) {
      out += "null";
      return;
    }
    char text[64];
    out.append(text, nlohmann::detail::to_chars(text, text + sizeof text, value));
  }

  void write_string(const std::string& text) {
    const bool plain = std::none_of(text.begin(), text.end(),
                                    [](unsigned char c) { return c < 0x20 || c >= 0x80 || c == '"' || c == '\\'; });
    if (plain)
      out += '"' + text + '"';
    else
      out += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  int indent_;
};

std::string to_text(const Json& value, int indent) {
  JsonWriter writer(indent);
  writer.write(value, 0);
  return std::move(writer.out);
}

namespace {

// Forwards nlohmann's events to ours.
class Adapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() override { return events_.null(), true; }
  bool boolean(bool value) override { return events_.boolean(value), true; }
  bool number_integer(number_integer_t value) override { return events_.number(std::int64_t{value}), true; }
  bool number_unsigned(number_unsigned_t value) override { return events_.number(std::uint64_t{value}), true; }
  bool number_float(number_float_t value, const string_t&) override { return events_.number(value), true; }
  bool string(string_t& value) override { return events_.string(value), true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return events_.begin_object(), true; }
  bool key(string_t& name) override { return events_.key(name), true; }
  bool end_object() override { return events_.end_object(), true; }
  bool start_array(std::size_t) override { return events_.begin_array(), true; }
  bool end_array() override { return events_.end_array(), true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    events_.error(position);
    return false;
  }

 private:
  JsonEvents& events_;
};

// Builds the value while checking it. Nothing is copied or recursive, so depth cannot overflow the stack.
class GuardedReader : public JsonEvents {
 public:
  GuardedReader(Json& root, std::string_view place, JsonLimits limits) : root_(root), place_(place), limits_(limits) {}

  void null() override { add(nullptr); }
  void boolean(bool value) override { add(value); }
  void number(std::int64_t value) override { add(value); }
  void number(std::uint64_t value) override { add(value); }
  void number(double value) override { add(value); }
  void string(std::string& value) override { add(std::move(value)); }
  void begin_object() override {
    enter(Json::object());
    keys_.emplace_back();
  }
  void key(std::string& name) override {
    if (!keys_.back().insert(name).second) {
      fail(ErrorKind::BadFile, "{}: the key {} occurs twice in one object", place_, in_quotes(name));
    }
    key_ = std::move(name);
  }
  void end_object() override {
    keys_.pop_back();
    open_.pop_back();
  }
  void begin_array() override { enter(Json::array()); }
  void end_array() override { open_.pop_back(); }
  void error(std::size_t byte) override { fail(ErrorKind::BadFile, "{}: not valid JSON at byte {}", place_, byte); }

 private:
  void enter(Json container) {
    if (open_.size() >= static_cast<std::size_t>(limits_.depth)) {
      fail(ErrorKind::BadFile, "{}: JSON nested deeper than {} levels", place_, limits_.depth);
    }
    open_.push_back(add(std::move(container)));
  }
  Json* add(Json value) {
    if (++values_ > limits_.values) fail(ErrorKind::BadFile, "{}: more than {} JSON values", place_, limits_.values);
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_object()) return &open_.back()->append(std::move(key_), std::move(value));
    open_.back()->push_back(std::move(value));
    return &(*open_.back())[open_.back()->size() - 1];
  }

  Json& root_;
  std::string_view place_;
  JsonLimits limits_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::vector<Json*> open_;  // enclosing objects and arrays of the next value; their addresses are stable
  std::string key_;
  std::uint64_t values_ = 0;
};

}  // namespace

void parse_json_events(std::string_view text, JsonEvents& events) {
  Adapter adapter(events);
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
}

Json parse_json(std::string_view text, std::string_view place, JsonLimits limits) {
  if (text.size() > limits.bytes)
    fail(ErrorKind::BadFile, "{}: {} bytes of JSON, the limit is {}", place, text.size(), limits.bytes);
  // The parser takes a NUL for the end of the text and ignores what follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::BadFile, "{}: not valid JSON at byte {}", place, nul + 1);
  }
  Json root;
  GuardedReader reader(root, place, limits);
  parse_json_events(text, reader);
  return root;
}

Json read_json(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_text(path, limits.bytes), path.string(), limits);
}

}  // namespace essh
