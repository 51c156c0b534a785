#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace essh {

struct TextRange {
  std::size_t begin;
  std::size_t end;
};

// Matches of any regular expression, by PCRE2 with JIT. Matching is thread-safe.
class RegexSplitter {
 public:
  // `literal` takes the pattern as plain text. A pattern that PCRE2 refuses, or any in a build without PCRE2, is an
  // error that starts with `place`.
  RegexSplitter(std::string_view pattern, bool literal, std::string place);
  ~RegexSplitter();
  RegexSplitter(RegexSplitter&&) noexcept;

  // Appends all matches from left to right; including empty ones. Bytes that are not UTF-8 match nothing; the pattern
  // sees the end of the text before them. Exceeding the step limit is an error.
  void matches(std::string_view text, std::vector<TextRange>& found) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace essh
