#pragma once
#include <nlohmann/json_fwd.hpp>

namespace essh {

using Json = nlohmann::ordered_json;

}  // namespace essh
