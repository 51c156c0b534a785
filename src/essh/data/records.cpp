#include "essh/data/records.h"

#include <algorithm>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"
#include "essh/data/byte_stream.h"
#include "essh/data/parquet_records.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

// Sets of questions are small; refuses a corpus given by mistake before it fills the memory.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

std::string whole_file(const fs::path& path) {
  const auto stream = open_byte_stream(path);
  std::string text;
  for (std::size_t size = 0;;) {
    text.resize(size + (std::size_t{1} << 16));
    const auto count = stream->read(std::span(text).subspan(size));
    size += count;
    if (count > 0 && size <= kMostBytes) continue;
    if (size > kMostBytes) fail(ErrorKind::BadFile, "{}: more than {} bytes", path.string(), kMostBytes);
    text.resize(size);
    break;
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (const auto bad = first_invalid_utf8(text))
    fail(ErrorKind::BadFile, "{}: not UTF-8 at byte {}", path.string(), *bad);
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (lines.back().ends_with('\r')) lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

void add_object(std::vector<Json>& records, Json record, const std::string& place) {
  if (!record.is_object()) fail(ErrorKind::BadFile, "{}: expected a JSON object", place);
  records.push_back(std::move(record));
}

std::vector<Json> json_records(const std::string& text, const std::string& place) {
  constexpr JsonLimits kLimits{.bytes = kMostBytes, .values = std::uint64_t{1} << 27};
  std::vector<Json> records;
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return records;
  if (text[first] == '[') {
    auto list = parse_json(text, place, kLimits);
    for (std::size_t i = 0; i < list.size(); ++i)
      add_object(records, std::move(list[i]), fmt::format("{}: entry {}", place, i));
    return records;
  }
  const auto lines = lines_of(text);
  const bool spread = lines.size() > 1 && lines[0].find_first_not_of(" \t{") == std::string::npos;
  if (spread) {
    add_object(records, parse_json(text, place, kLimits), place);
    return records;
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find_first_not_of(" \t") == std::string::npos) continue;
    const auto where = fmt::format("{}: line {}", place, i + 1);
    add_object(records, parse_json(lines[i], where, kLimits), where);
  }
  return records;
}

// Rows of cells; a quoted cell may contain separators, line breaks and doubled quotes.
std::vector<std::vector<std::string>> table_rows(const std::string& text, char separator, const std::string& place) {
  std::vector<std::vector<std::string>> rows;
  std::size_t at = 0;
  while (at < text.size()) {
    std::vector<std::string> row(1);
    for (bool ended = false; !ended;) {
      if (at < text.size() && text[at] == '"' && row.back().empty()) {
        for (++at;; ++at) {
          if (at >= text.size())
            fail(ErrorKind::BadFile, "{}: row {} has a quote that is not closed", place, rows.size() + 1);
          if (text[at] == '"' && (at + 1 >= text.size() || text[at + 1] != '"')) break;
          if (text[at] == '"') ++at;
          row.back() += text[at];
        }
        ++at;
      }
      while (at < text.size() && text[at] != separator && text[at] != '\n') row.back() += text[at++];
      if (at < text.size() && text[at] == separator)
        row.emplace_back();
      else
        ended = true;
      ++at;
    }
    if (row.back().ends_with('\r')) row.back().pop_back();
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Json> table_records(const std::string& text, char separator, const std::string& place) {
  const auto rows = table_rows(text, separator, place);
  std::vector<Json> records;
  for (std::size_t r = 1; r < rows.size(); ++r) {
    if (rows[r].size() != rows[0].size()) {
      fail(ErrorKind::BadFile, "{}: row {} has {} cells, the first row names {} columns", place, r + 1, rows[r].size(),
           rows[0].size());
    }
    Json record = Json::object();
    for (std::size_t c = 0; c < rows[r].size(); ++c) record[rows[0][c]] = rows[r][c];
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<Json> line_records(const std::string& text, const std::vector<std::string>& fields,
                               const std::string& place) {
  if (fields.empty()) fail(ErrorKind::BadFile, "{}: format lines needs fields, the names of a record's lines", place);
  const auto lines = lines_of(text);
  if (lines.size() % fields.size() != 0) {
    fail(ErrorKind::BadFile, "{}: {} lines are not a multiple of the {} of a record", place, lines.size(),
         fields.size());
  }
  std::vector<Json> records;
  for (std::size_t first = 0; first < lines.size(); first += fields.size()) {
    Json record = Json::object();
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (!fields[i].empty()) record[fields[i]] = lines[first + i];
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::string format_by_extension(fs::path path) {
  if (path.extension() == ".gz" || path.extension() == ".zst") path = path.stem();
  const auto extension = path.extension().string();
  if (extension == ".csv" || extension == ".tsv" || extension == ".parquet") return extension.substr(1);
  return "json";
}

}  // namespace

std::vector<std::string> read_lines(const fs::path& path) {
  return lines_of(whole_file(path));
}

std::vector<Json> read_records(const fs::path& path, const RecordOptions& options) {
  if (fs::is_directory(path)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::ranges::sort(files);
    std::vector<Json> records;
    for (const auto& file : files) std::ranges::move(read_records(file, options), std::back_inserter(records));
    return records;
  }
  const auto place = path.string();
  const auto format = options.format == "auto" ? format_by_extension(path) : options.format;
  if (format == "parquet") return read_parquet_records(path);
  if (format == "json") return json_records(whole_file(path), place);
  if (format == "csv") return table_records(whole_file(path), ',', place);
  if (format == "tsv") return table_records(whole_file(path), '\t', place);
  if (format == "lines") return line_records(whole_file(path), options.fields, place);
  fail(ErrorKind::BadFile, "{}: format must be one of auto, json, csv, tsv, lines, parquet, got {}", place,
       in_quotes(format));
}

}  // namespace essh
