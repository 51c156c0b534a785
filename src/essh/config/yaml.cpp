#include "essh/config/yaml.h"

#include <yaml-cpp/yaml.h>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"

namespace essh {
namespace {

constexpr int kDepth = 16;
constexpr int kNodes = 20'000;  // aliases count at every use

// yaml-cpp accepts any bytes, and escapes of half a surrogate pair.
const std::string& text_of(const YAML::Node& node, const std::string& place) {
  const auto& text = node.Scalar();
  if (first_invalid_utf8(text)) fail(ErrorKind::BadFile, "{}: {} is not UTF-8", place, in_quotes(text));
  return text;
}

Json scalar(const YAML::Node& node, const std::string& place) {
  const std::string text = text_of(node, place);
  if (node.Tag() == "!") return text;  // quoted
  if (bool value = false; YAML::convert<bool>::decode(node, value)) return value;
  if (std::int64_t value = 0; YAML::convert<std::int64_t>::decode(node, value)) return value;
  if (double value = 0; YAML::convert<double>::decode(node, value)) return value;
  return text;
}

Json to_json(const YAML::Node& node, const std::string& place, int depth, int& nodes) {
  if (depth > kDepth) fail(ErrorKind::BadFile, "{}: nested deeper than {} levels", place, kDepth);
  if (++nodes > kNodes) fail(ErrorKind::BadFile, "{}: more than {} values", place, kNodes);
  switch (node.Type()) {
    case YAML::NodeType::Map: {
      Json object = Json::object();
      for (const auto& entry : node) {
        if (!entry.first.IsScalar()) fail(ErrorKind::BadFile, "{}: a key must be a word", place);
        const std::string key = text_of(entry.first, place);
        if (object.contains(key)) fail(ErrorKind::BadFile, "{}: {} occurs twice", place, in_quotes(key));
        object[key] = to_json(entry.second, place, depth + 1, nodes);
      }
      return object;
    }
    case YAML::NodeType::Sequence: {
      Json list = Json::array();
      for (const auto& entry : node) list.push_back(to_json(entry, place, depth + 1, nodes));
      return list;
    }
    case YAML::NodeType::Scalar:
      return scalar(node, place);
    default:
      return nullptr;
  }
}

}  // namespace

Json parse_yaml(const std::string& text, const std::string& place) {
  try {
    int nodes = 0;
    const auto json = to_json(YAML::Load(text), place, 0, nodes);
    return json.is_null() ? Json::object() : json;
  } catch (const YAML::Exception& error) {
    fail(ErrorKind::BadFile, "{}: not valid YAML at line {}: {}", place, error.mark.line + 1, error.msg);
  }
}

}  // namespace essh
