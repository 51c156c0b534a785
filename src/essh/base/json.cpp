#include "essh/base/json.h"

#include <unordered_set>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/utf8.h"

namespace essh {
namespace {

// Builds the value while it checks: nothing is copied, so depth never meets the stack.
class GuardedReader : public nlohmann::json_sax<Json> {
 public:
  GuardedReader(Json& root, std::string_view place, JsonLimits limits) : root_(root), place_(place), limits_(limits) {}

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return add(value) != nullptr; }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    enter(Json::object());
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      fail(ErrorKind::BadFile, "{}: the key {} occurs twice in one object", place_, in_quotes(name));
    }
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    enter(Json::array());
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorKind::BadFile, "{}: not valid JSON at byte {}", place_, position);
  }

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
    if (open_.back()->is_array()) return &open_.back()->get_ref<Json::array_t&>().emplace_back(std::move(value));
    // The key is known to be new: appending as to a vector spares the map's search, which is linear in its size.
    Json::object_t::Container& members = open_.back()->get_ref<Json::object_t&>();
    return &members.emplace_back(std::move(key_), std::move(value)).second;
  }

  Json& root_;
  std::string_view place_;
  JsonLimits limits_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::vector<Json*> open_;  // the objects and arrays around the next value; their owners do not grow meanwhile
  std::string key_;
  std::uint64_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view place, JsonLimits limits) {
  if (text.size() > limits.bytes)
    fail(ErrorKind::BadFile, "{}: {} bytes of JSON, the limit is {}", place, text.size(), limits.bytes);
  // The parser takes a NUL for the end of the text, whatever follows it.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::BadFile, "{}: not valid JSON at byte {}", place, nul + 1);
  }
  Json root;
  GuardedReader reader(root, place, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) fail(ErrorKind::BadFile, "{}: not valid JSON", place);
  return root;
}

Json read_json(const std::filesystem::path& path, JsonLimits limits) {
  return parse_json(read_text(path, limits.bytes), path.string(), limits);
}

std::string to_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace essh
