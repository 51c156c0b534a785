#pragma once
#include <string>

#include "essh/base/json_fwd.h"

namespace essh {

// Passes over the keys that Hugging Face's tools add to a config.json. A key that would change what the model computes
// must have the value that this program computes; another value is an error.
Json without_foreign_keys(const Json& config, const std::string& place);

}  // namespace essh
