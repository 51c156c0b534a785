#pragma once
#include <string>

#include "essh/base/json_fwd.h"

namespace essh {

// Converts untrusted YAML to JSON; an empty document is an empty object. Quoted scalars are strings. Refuses duplicate
// keys, deep nesting, too many values and text that is not UTF-8. Messages start with `place`.
Json parse_yaml(const std::string& text, const std::string& place);

}  // namespace essh
