#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "essh/base/json_fwd.h"

namespace essh {

// Fills a template from a record: "Question: {{question.stem}}\nAnswer:". Braces hold a path of keys and filters:
// "{{sentence|after:_|strip}}". On a list, the rest of the path and the filters apply to each element. A missing key or
// an unknown filter is an error; `place` starts the message.
//   strip, lstrip         without whitespace at both ends, at the start
//   capitalize            the first letter upper case, all others lower case
//   lower_first           the first letter lower case
//   drop_last             without the last character
//   drop:N                without the first N characters
//   before:X, after:X     what stands before or after the first X, which must occur
//   before_last_word, last_word   split at the last space
//   map:a=x,b=y           x for the value a, y for b
//   lettered              a list from "(A) one (B) two"
//   spaced_periods        ". " for each ".", then strip; LogiQA's cleaning
//   wikihow               HellaSwag's cleaning of brackets and double spaces
std::string render(std::string_view text, const Json& record, const std::string& place);
// One text per entry; an entry that is one "{{...}}" of a list gives one text per element.
std::vector<std::string> render_list(const std::vector<std::string>& entries, const Json& record,
                                     const std::string& place);

// Offset of the trailing whitespace by Python's str.rstrip().
std::size_t trailing_space(std::string_view text);

}  // namespace essh
