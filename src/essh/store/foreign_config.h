#pragma once
#include <string>

#include "essh/base/json_fwd.h"

namespace essh {

// Ignores keys that Hugging Face's tools add to a config.json. A key that affects the computation must have the value
// that essh implements; another value is an error.
Json without_foreign_keys(const Json& config, const std::string& place);

}  // namespace essh
