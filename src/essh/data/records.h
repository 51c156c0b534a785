#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"

namespace essh {

struct RecordOptions {
  std::string format = "auto";           // json, csv, tsv, lines, parquet; auto: by the extension, json for others
  std::vector<std::string> fields = {};  // lines: the names of a record's lines; an empty name skips its line
};

// Every record of a file as a JSON object, gzip and zstd decompressed.
// json: one object a line, one array of objects, or one object. csv and tsv: the first row names the columns and every
// value is a string; quotes as in RFC 4180. lines: every record has as many lines as there are fields. parquet: columns
// of strings, numbers, booleans, and lists and structs of these. A folder stands for its files in the order of their
// names.
std::vector<Json> read_records(const std::filesystem::path& path, const RecordOptions& options = {});

// The lines of a text file without their ends.
std::vector<std::string> read_lines(const std::filesystem::path& path);

}  // namespace essh
