#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "essh/data/document_block.h"

namespace essh {

// Extracts one string field of a JSON object without building the object. Checks the grammar of the whole value in
// constant memory, for any split of the bytes. A lone surrogate becomes U+FFFD; bytes that are not UTF-8 pass
// unchanged. Only fields of the outermost object count.
class JsonFieldScanner {
 public:
  static constexpr int kDepth = 64;

  explicit JsonFieldScanner(std::string field) : field_(std::move(field)) {}

  // Starts a new object.
  void reset();
  // Scans the next bytes and appends the field's text in them to `text`. Returns false once the object is invalid;
  // nothing more may be fed then.
  bool feed(std::string_view bytes, std::string& text);
  // Whether the object was complete and had the field.
  bool finish();
  LineFault fault() const { return fault_; }

 private:
  enum class State : std::uint8_t {
    Start,
    Value,
    FirstElement,
    FirstKey,
    Key,
    Colon,
    AfterValue,
    End,
    InString,
    Escape,
    Hex,
    Literal,
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
  };
  enum class Role : std::uint8_t { Other, OuterKey, Field };

  bool stop(LineFault fault);
  bool step(char byte, std::string& text);
  bool open(bool object);
  bool close(bool object);
  bool begin_value(char byte);
  void begin_string(Role role);
  bool end_string(std::string& text);
  bool escape(char byte, std::string& text);
  bool hex_digit(char byte, std::string& text);
  void put(std::string_view bytes, std::string& text);
  void put_character(std::uint32_t code, std::string& text);
  void flush_surrogate(std::string& text);
  bool number_byte(char byte, bool& done);

  std::string field_;
  std::string key_;
  std::uint64_t objects_ = 0;  // bit d: the container at depth d is an object
  int depth_ = 0;
  State state_ = State::Start;
  Role role_ = Role::Other;
  bool key_string_ = false;  // the string being read is a key
  bool field_next_ = false;  // the next value belongs to the field
  bool found_ = false;
  LineFault fault_ = LineFault::None;
  std::string_view literal_;  // remaining characters of true, false or null
  int hex_left_ = 0;
  std::uint32_t code_ = 0;
  std::uint32_t high_ = 0;  // a pending high surrogate
};

}  // namespace essh
