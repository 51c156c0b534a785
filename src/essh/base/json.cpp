#include "essh/base/json.h"

#include <unordered_set>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/file.h"

namespace essh {
namespace {

// Builds the value while it checks: nothing is copied, so depth never meets the stack.
class GuardedReader : public nlohmann::json_sax<Json> {
 public:
  GuardedReader(Json& root, std::string_view place, JsonLimits limits)
      : dom_(root, true), place_(place), limits_(limits) {}

  bool null() override { return count() && dom_.null(); }
  bool boolean(bool value) override { return count() && dom_.boolean(value); }
  bool number_integer(number_integer_t value) override { return count() && dom_.number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return count() && dom_.number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override { return count() && dom_.number_float(value, text); }
  bool string(string_t& value) override { return count() && dom_.string(value); }
  bool binary(binary_t& value) override { return count() && dom_.binary(value); }
  bool start_object(std::size_t elements) override {
    enter();
    keys_.emplace_back();
    return dom_.start_object(elements);
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      fail(ErrorKind::BadFile, "{}: the key \"{}\" occurs twice in one object", place_, name.substr(0, 80));
    }
    return dom_.key(name);
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return dom_.end_object();
  }
  bool start_array(std::size_t elements) override {
    enter();
    return dom_.start_array(elements);
  }
  bool end_array() override {
    --depth_;
    return dom_.end_array();
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorKind::BadFile, "{}: not valid JSON at byte {}", place_, position);
  }

 private:
  void enter() {
    count();
    if (++depth_ > limits_.depth) fail(ErrorKind::BadFile, "{}: JSON nested deeper than {} levels", place_, limits_.depth);
  }
  bool count() {
    if (++values_ > limits_.values) fail(ErrorKind::BadFile, "{}: more than {} JSON values", place_, limits_.values);
    return true;
  }

  nlohmann::detail::json_sax_dom_parser<Json> dom_;
  std::string_view place_;
  JsonLimits limits_;
  std::vector<std::unordered_set<std::string>> keys_;
  int depth_ = 0;
  std::uint64_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view place, JsonLimits limits) {
  if (text.size() > limits.bytes) fail(ErrorKind::BadFile, "{}: {} bytes of JSON, the limit is {}", place, text.size(), limits.bytes);
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
