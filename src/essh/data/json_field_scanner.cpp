#include "essh/data/json_field_scanner.h"

#include <cstring>

namespace essh {
namespace {

bool is_space(char byte) {
  return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}
bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

bool plain(char byte) {
  return byte != '"' && byte != '\\' && static_cast<unsigned char>(byte) >= 0x20;
}

// Length of the prefix of unescaped bytes inside a JSON string; eight bytes at a time.
std::size_t plain_run(std::string_view bytes) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  constexpr std::uint64_t kHighs = 0x8080808080808080u;
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    const auto has_zero = [](std::uint64_t value) { return (value - kOnes) & ~value & kHighs; };
    const auto control = (word - kOnes * 0x20) & ~word & kHighs;
    if ((has_zero(word ^ (kOnes * '"')) | has_zero(word ^ (kOnes * '\\')) | control) != 0) break;
  }
  while (at < bytes.size() && plain(bytes[at])) ++at;
  return at;
}

}  // namespace

void JsonFieldScanner::reset() {
  objects_ = 0;
  depth_ = 0;
  state_ = State::Start;
  field_next_ = found_ = false;
  fault_ = LineFault::None;
  high_ = 0;
}

bool JsonFieldScanner::stop(LineFault fault) {
  fault_ = fault;
  return false;
}

bool JsonFieldScanner::feed(std::string_view bytes, std::string& text) {
  if (fault_ != LineFault::None) return false;
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (state_ == State::InString) {
      const auto run = plain_run(bytes.substr(at));
      if (run > 0) put(bytes.substr(at, run), text);
      at += run;
      if (at == bytes.size()) break;
    }
    if (!step(bytes[at++], text)) return false;
  }
  return true;
}

bool JsonFieldScanner::finish() {
  if (fault_ != LineFault::None) return false;
  if (state_ != State::End) return stop(LineFault::NotJson);
  return found_ || stop(LineFault::FieldMissing);
}

bool JsonFieldScanner::step(char byte, std::string& text) {
  switch (state_) {
    case State::Start:
      if (is_space(byte)) return true;
      return byte == '{' ? open(true) : stop(LineFault::NotObject);
    case State::FirstElement:
      if (byte == ']') return close(false);
      [[fallthrough]];
    case State::Value:
      return is_space(byte) || begin_value(byte);
    case State::FirstKey:
      if (byte == '}') return close(true);
      [[fallthrough]];
    case State::Key:
      if (is_space(byte)) return true;
      if (byte != '"') return stop(LineFault::NotJson);
      key_string_ = true;
      begin_string(depth_ == 1 ? Role::OuterKey : Role::Other);
      return true;
    case State::Colon:
      if (is_space(byte)) return true;
      if (byte != ':') return stop(LineFault::NotJson);
      state_ = State::Value;
      return true;
    case State::AfterValue: {
      if (is_space(byte)) return true;
      const bool object = ((objects_ >> (depth_ - 1)) & 1) != 0;
      if (byte == ',') {
        state_ = object ? State::Key : State::Value;
        return true;
      }
      if (byte == '}' || byte == ']') return close(byte == '}');
      return stop(LineFault::NotJson);
    }
    case State::End:
      return is_space(byte) || stop(LineFault::NotJson);
    case State::InString:
      if (byte == '"') return end_string(text);
      if (byte != '\\') return stop(LineFault::NotJson);
      state_ = State::Escape;
      return true;
    case State::Escape:
      return escape(byte, text);
    case State::Hex:
      return hex_digit(byte, text);
    case State::Literal:
      if (byte != literal_.front()) return stop(LineFault::NotJson);
      literal_.remove_prefix(1);
      if (literal_.empty()) state_ = State::AfterValue;
      return true;
    default: {
      bool done = false;
      if (!number_byte(byte, done)) return stop(LineFault::NotJson);
      if (!done) return true;
      state_ = State::AfterValue;
      return step(byte, text);
    }
  }
}

bool JsonFieldScanner::open(bool object) {
  if (depth_ == kDepth) return stop(LineFault::TooDeep);
  const auto bit = std::uint64_t{1} << depth_;
  objects_ = object ? objects_ | bit : objects_ & ~bit;
  ++depth_;
  state_ = object ? State::FirstKey : State::FirstElement;
  return true;
}

bool JsonFieldScanner::close(bool object) {
  if ((((objects_ >> (depth_ - 1)) & 1) != 0) != object) return stop(LineFault::NotJson);
  state_ = --depth_ == 0 ? State::End : State::AfterValue;
  return true;
}

bool JsonFieldScanner::begin_value(char byte) {
  if (field_next_ && byte != '"') return stop(LineFault::FieldNotString);
  switch (byte) {
    case '{':
      return open(true);
    case '[':
      return open(false);
    case '"':
      key_string_ = false;
      begin_string(field_next_ ? Role::Field : Role::Other);
      field_next_ = false;
      return true;
    case 't':
      literal_ = "rue";
      break;
    case 'f':
      literal_ = "alse";
      break;
    case 'n':
      literal_ = "ull";
      break;
    case '-':
      state_ = State::Minus;
      return true;
    case '0':
      state_ = State::Zero;
      return true;
    default:
      if (!is_digit(byte)) return stop(LineFault::NotJson);
      state_ = State::Integer;
      return true;
  }
  state_ = State::Literal;
  return true;
}

// One byte of a number; sets `done` if the byte is no longer part of it.
bool JsonFieldScanner::number_byte(char byte, bool& done) {
  const bool digit = is_digit(byte);
  const bool exponent = byte == 'e' || byte == 'E';
  switch (state_) {
    case State::Minus:
      state_ = byte == '0' ? State::Zero : State::Integer;
      return digit;
    case State::Integer:
      if (digit) return true;
      [[fallthrough]];
    case State::Zero:
      if (byte == '.')
        state_ = State::Point;
      else if (exponent)
        state_ = State::Exponent;
      else
        done = true;
      return !digit;
    case State::Point:
      state_ = State::Fraction;
      return digit;
    case State::Fraction:
      if (exponent)
        state_ = State::Exponent;
      else
        done = !digit;
      return true;
    case State::Exponent:
      state_ = digit ? State::ExponentDigits : State::ExponentSign;
      return digit || byte == '+' || byte == '-';
    case State::ExponentSign:
      state_ = State::ExponentDigits;
      return digit;
    default:
      done = !digit;
      return true;
  }
}

void JsonFieldScanner::begin_string(Role role) {
  role_ = role;
  key_.clear();
  state_ = State::InString;
}

bool JsonFieldScanner::end_string(std::string& text) {
  flush_surrogate(text);
  if (!key_string_) {
    state_ = State::AfterValue;
    return true;
  }
  state_ = State::Colon;
  if (role_ == Role::OuterKey && key_ == field_) {
    if (found_) return stop(LineFault::FieldTwice);
    field_next_ = found_ = true;
  }
  return true;
}

bool JsonFieldScanner::escape(char byte, std::string& text) {
  state_ = State::InString;
  switch (byte) {
    case '"':
      put("\"", text);
      return true;
    case '\\':
      put("\\", text);
      return true;
    case '/':
      put("/", text);
      return true;
    case 'b':
      put("\b", text);
      return true;
    case 'f':
      put("\f", text);
      return true;
    case 'n':
      put("\n", text);
      return true;
    case 'r':
      put("\r", text);
      return true;
    case 't':
      put("\t", text);
      return true;
    case 'u':
      state_ = State::Hex;
      hex_left_ = 4;
      code_ = 0;
      return true;
    default:
      return stop(LineFault::NotJson);
  }
}

bool JsonFieldScanner::hex_digit(char byte, std::string& text) {
  const char lower = static_cast<char>(byte | 0x20);
  if (is_digit(byte))
    code_ = code_ << 4 | static_cast<std::uint32_t>(byte - '0');
  else if (lower >= 'a' && lower <= 'f')
    code_ = code_ << 4 | static_cast<std::uint32_t>(lower - 'a' + 10);
  else
    return stop(LineFault::NotJson);
  if (--hex_left_ > 0) return true;
  state_ = State::InString;
  const bool low = code_ >= 0xDC00 && code_ <= 0xDFFF;
  if (low && high_ != 0) {
    const auto code = 0x10000 + ((high_ - 0xD800) << 10) + (code_ - 0xDC00);
    high_ = 0;
    put_character(code, text);
    return true;
  }
  flush_surrogate(text);
  if (code_ >= 0xD800 && code_ <= 0xDBFF)
    high_ = code_;
  else
    put_character(low ? 0xFFFD : code_, text);
  return true;
}

void JsonFieldScanner::flush_surrogate(std::string& text) {
  if (high_ == 0) return;
  high_ = 0;
  put_character(0xFFFD, text);
}

void JsonFieldScanner::put(std::string_view bytes, std::string& text) {
  flush_surrogate(text);
  if (role_ == Role::Field) text.append(bytes);
  // One byte more than the field's name suffices to tell them apart.
  else if (role_ == Role::OuterKey && key_.size() <= field_.size())
    key_.append(bytes.substr(0, field_.size() + 1));
}

void JsonFieldScanner::put_character(std::uint32_t code, std::string& text) {
  char bytes[4];
  std::size_t size = 0;
  const auto tail = [&](int shift) { bytes[size++] = static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    bytes[size++] = static_cast<char>(code);
  } else if (code < 0x800) {
    bytes[size++] = static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    bytes[size++] = static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    bytes[size++] = static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
  put({bytes, size}, text);
}

}  // namespace essh
