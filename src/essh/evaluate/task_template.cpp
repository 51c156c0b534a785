#include "essh/evaluate/task_template.h"

#include <locale.h>

#include <charconv>
#include <cwctype>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"
#include "essh/text/utf8.h"

namespace essh {
namespace {

// Python's str.isspace().
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto c = utf8_char(text, at);
    if (!c.valid || !is_space(c.code)) break;
    at += c.length;
  }
  return at;
}

std::string strip(std::string_view text) {
  text = text.substr(0, trailing_space(text));
  return std::string(text.substr(leading_space(text)));
}

enum class Case { Lower, Upper };

// Unicode's simple case mapping, independent of the locale.
char32_t with_case(char32_t c, Case to) {
  static const auto locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (locale == nullptr || c < 0x80) {
    if (to == Case::Lower) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    return c >= 'a' && c <= 'z' ? c - 32 : c;
  }
  const auto wide = static_cast<wint_t>(c);
  return static_cast<char32_t>(to == Case::Lower ? towlower_l(wide, locale) : towupper_l(wide, locale));
}

std::string map_case(std::string_view text, Case first, bool rest) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = utf8_char(text, at);
    if (at > 0 && !rest) return out.append(text.substr(at));
    if (c.valid)
      append_utf8(out, with_case(c.code, at == 0 ? first : Case::Lower));
    else
      out.append(text.substr(at, c.length));
    at += c.length;
  }
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = 0;;) {
    const auto found = text.find(from, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += to;
    at = found + from.size();
  }
}

// Removes the shortest matches of "[...]" without a line break.
std::string without_brackets(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '[') {
      const auto end = text.find_first_of("]\n", at + 1);
      if (end != std::string_view::npos && text[end] == ']') {
        at = end;
        continue;
      }
    }
    out += text[at];
  }
  return out;
}

Json lettered(std::string_view text, const std::string& place) {
  Json list = Json::array();
  std::size_t at = 0;
  for (char letter = 'A'; at < text.size(); ++letter) {
    const std::string mark = {'(', letter, ')'}, next = {'(', static_cast<char>(letter + 1), ')'};
    if (text.substr(at, 3) != mark) fail(ErrorKind::BadFile, "{}: expected {} in {}", place, mark, in_quotes(text));
    const auto end = std::min(text.find(next, at), text.size());
    list.push_back(strip(text.substr(at + 3, end - at - 3)));
    at = end;
  }
  return list;
}

std::string mapped(std::string_view text, std::string_view pairs, const std::string& place) {
  while (!pairs.empty()) {
    const auto pair = pairs.substr(0, pairs.find(','));
    const auto equals = pair.find('=');
    if (equals == std::string_view::npos)
      fail(ErrorKind::BadFile, "{}: filter map needs value=text pairs, got {}", place, in_quotes(pair));
    if (pair.substr(0, equals) == text) return std::string(pair.substr(equals + 1));
    pairs.remove_prefix(std::min(pair.size() + 1, pairs.size()));
  }
  fail(ErrorKind::BadFile, "{}: filter map has no text for {}", place, in_quotes(text));
}

Json filtered(const std::string& text, std::string_view filter, const std::string& place) {
  const auto colon = filter.find(':');
  const auto name = filter.substr(0, colon);
  const auto argument = colon == std::string_view::npos ? std::string_view() : filter.substr(colon + 1);
  if (name == "strip") return strip(text);
  if (name == "lstrip") return text.substr(leading_space(text));
  if (name == "capitalize") return map_case(text, Case::Upper, true);
  if (name == "lower_first") return map_case(text, Case::Lower, false);
  if (name == "drop_last") return text.substr(0, text.empty() ? 0 : utf8_previous(text, text.size()));
  if (name == "before" || name == "after") {
    const auto found = text.find(argument);
    if (argument.empty() || found == std::string::npos)
      fail(ErrorKind::BadFile, "{}: no {} in {}", place, in_quotes(argument), in_quotes(text));
    return name == "before" ? text.substr(0, found) : text.substr(found + argument.size());
  }
  if (name == "before_last_word" || name == "last_word") {
    const auto space = text.rfind(' ');
    if (name == "last_word") return space == std::string::npos ? text : text.substr(space + 1);
    return space == std::string::npos ? "" : text.substr(0, space);
  }
  if (name == "drop") {
    std::size_t count = 0, at = 0;
    const auto end = argument.data() + argument.size();
    if (argument.empty() || std::from_chars(argument.data(), end, count).ptr != end)
      fail(ErrorKind::BadFile, "{}: filter drop needs a number, got {}", place, in_quotes(argument));
    while (count-- > 0 && at < text.size()) at += utf8_char(text, at).length;
    return text.substr(at);
  }
  if (name == "map") return mapped(text, argument, place);
  if (name == "lettered") return lettered(text, place);
  if (name == "spaced_periods") return strip(replace_all(text, ".", ". "));
  if (name == "wikihow") return replace_all(without_brackets(replace_all(strip(text), " [title]", ". ")), "  ", " ");
  fail(ErrorKind::BadFile, "{}: no filter {}", place, in_quotes(name));
}

std::string text_of(const Json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return to_text(value);
  fail(ErrorKind::BadFile, "{}: expected text or a number, got {}", place, in_quotes(to_text(value)));
}

Json apply(const Json& value, std::string_view filter, const std::string& place) {
  if (!value.is_array()) return filtered(text_of(value, place), filter, place);
  Json list = Json::array();
  for (const auto& entry : value) list.push_back(apply(entry, filter, place));
  return list;
}

Json at_path(const Json& value, std::string_view path, const std::string& place) {
  if (path.empty()) return value;
  if (value.is_array()) {
    Json list = Json::array();
    for (const auto& entry : value) list.push_back(at_path(entry, path, place));
    return list;
  }
  const std::string key(path.substr(0, path.find('.')));
  if (!value.is_object() || !value.contains(key)) fail(ErrorKind::BadFile, "{}: no field {}", place, in_quotes(key));
  return at_path(value.at(key), key.size() == path.size() ? std::string_view() : path.substr(key.size() + 1), place);
}

// The value of the expression between braces.
Json evaluate(std::string_view expression, const Json& record, const std::string& place) {
  const auto bar = expression.find('|');
  auto value = at_path(record, expression.substr(0, bar), place);
  while (expression.find('|') != std::string_view::npos) {
    expression.remove_prefix(expression.find('|') + 1);
    value = apply(value, expression.substr(0, expression.find('|')), place);
  }
  return value;
}

}  // namespace

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const auto before = utf8_previous(text, end);
    const auto c = utf8_char(text, before);
    if (!c.valid || !is_space(c.code)) break;
    end = before;
  }
  return end;
}

std::string render(std::string_view text, const Json& record, const std::string& place) {
  std::string out;
  while (true) {
    const auto open = text.find("{{");
    out += text.substr(0, open);
    if (open == std::string_view::npos) return out;
    const auto close = text.find("}}", open);
    if (close == std::string_view::npos)
      fail(ErrorKind::BadFile, "{}: {{{{ without }}}} in {}", place, in_quotes(text));
    out += text_of(evaluate(text.substr(open + 2, close - open - 2), record, place), place);
    text.remove_prefix(close + 2);
  }
}

std::vector<std::string> render_list(const std::vector<std::string>& entries, const Json& record,
                                     const std::string& place) {
  std::vector<std::string> list;
  for (const auto& entry : entries) {
    if (entry.starts_with("{{") && entry.find("}}") == entry.size() - 2) {
      const auto value = evaluate(std::string_view(entry).substr(2, entry.size() - 4), record, place);
      if (value.is_array()) {
        for (const auto& one : value) list.push_back(text_of(one, place));
        continue;
      }
    }
    list.push_back(render(entry, record, place));
  }
  return list;
}

}  // namespace essh
