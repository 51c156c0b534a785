#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "essh/base/json_fwd.h"

namespace essh {

// Text made from a record: "Question: {{question.stem}}\nAnswer:". Between braces stands a path of keys, a list mapping
// the rest of its path over its elements, then filters: "{{sentence|after:_|strip}}". Filters of a list map over its
// elements. A missing key or an unknown filter is an error; `place` starts the message.
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
// One text for each entry; an entry that is a single "{{...}}" of a list gives its elements.
std::vector<std::string> render_list(const std::vector<std::string>& entries, const Json& record,
                                     const std::string& place);

// Where the whitespace at the end of a text begins, by Python's str.rstrip().
std::size_t trailing_space(std::string_view text);

}  // namespace essh
