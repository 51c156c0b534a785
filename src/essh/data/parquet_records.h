#pragma once
#include <filesystem>
#include <vector>

#include "essh/base/json_fwd.h"

namespace essh {

// Every row of a Parquet file as a JSON object: strings, numbers, booleans, lists and structs.
std::vector<Json> read_parquet_records(const std::filesystem::path& path);

}  // namespace essh
