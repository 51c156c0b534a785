#include "essh/data/parquet_records.h"

#include "essh/base/error.h"
#include "essh/base/json.h"

#if ESSH_HAVE_PARQUET
#include <arrow/array.h>
#include <arrow/io/file.h>
#include <arrow/table.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#endif

namespace essh {

#if ESSH_HAVE_PARQUET
namespace {

// The element at `row` of an array.
Json element(const arrow::Array& array, std::int64_t row, const std::string& place) {
  if (array.IsNull(row)) return nullptr;
  const auto as = [&]<class T>(T*) -> const T& { return static_cast<const T&>(array); };
  const auto list = [&](const arrow::Array& values, std::int64_t first, std::int64_t count) {
    Json json = Json::array();
    for (std::int64_t i = 0; i < count; ++i) json.push_back(element(values, first + i, place));
    return json;
  };
  switch (array.type_id()) {
    case arrow::Type::STRING:
      return std::string(as(static_cast<arrow::StringArray*>(nullptr)).GetView(row));
    case arrow::Type::LARGE_STRING:
      return std::string(as(static_cast<arrow::LargeStringArray*>(nullptr)).GetView(row));
    case arrow::Type::BOOL:
      return as(static_cast<arrow::BooleanArray*>(nullptr)).Value(row);
    case arrow::Type::INT8:
      return as(static_cast<arrow::Int8Array*>(nullptr)).Value(row);
    case arrow::Type::INT32:
      return as(static_cast<arrow::Int32Array*>(nullptr)).Value(row);
    case arrow::Type::INT64:
      return as(static_cast<arrow::Int64Array*>(nullptr)).Value(row);
    case arrow::Type::DOUBLE:
      return as(static_cast<arrow::DoubleArray*>(nullptr)).Value(row);
    case arrow::Type::LIST: {
      const auto& lists = as(static_cast<arrow::ListArray*>(nullptr));
      return list(*lists.values(), lists.value_offset(row), lists.value_length(row));
    }
    case arrow::Type::STRUCT: {
      const auto& structs = as(static_cast<arrow::StructArray*>(nullptr));
      Json object = Json::object();
      for (int i = 0; i < structs.num_fields(); ++i)
        object[structs.type()->field(i)->name()] = element(*structs.field(i), row, place);
      return object;
    }
    default:
      fail(ErrorKind::Unsupported, "{}: a column of type {} cannot be read", place, array.type()->ToString());
  }
}

void check(const arrow::Status& status, const std::string& place) {
  if (!status.ok()) fail(ErrorKind::BadFile, "{}: cannot read this Parquet file: {}", place, status.message());
}

template <class T>
T checked(arrow::Result<T> result, const std::string& place) {
  check(result.status(), place);
  return std::move(result).ValueUnsafe();
}

// Arrow returns a result since version 21; before, it fills a pointer.
template <class Builder>
std::unique_ptr<parquet::arrow::FileReader> build(Builder& builder, const std::string& place) {
  if constexpr (requires { builder.Build(); }) {
    return checked(builder.Build(), place);
  } else {
    std::unique_ptr<parquet::arrow::FileReader> reader;
    check(builder.Build(&reader), place);
    return reader;
  }
}

template <class Reader>
std::shared_ptr<arrow::Table> read_table(Reader& reader, const std::string& place) {
  if constexpr (requires { reader.ReadTable(); }) {
    return checked(reader.ReadTable(), place);
  } else {
    std::shared_ptr<arrow::Table> table;
    check(reader.ReadTable(&table), place);
    return table;
  }
}

}  // namespace

std::vector<Json> read_parquet_records(const std::filesystem::path& path) {
  const auto place = path.string();
  const auto file = checked(arrow::io::ReadableFile::Open(place), place);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.Open(file), place);
  const auto reader = build(builder, place);
  const auto table = read_table(*reader, place);
  std::vector<Json> records(static_cast<std::size_t>(table->num_rows()), Json::object());
  for (int c = 0; c < table->num_columns(); ++c) {
    const auto& name = table->field(c)->name();
    std::size_t record = 0;
    for (const auto& chunk : table->column(c)->chunks()) {
      for (std::int64_t row = 0; row < chunk->length(); ++row)
        records[record++][name] = element(*chunk, row, fmt::format("{}: column {}", place, name));
    }
  }
  return records;
}
#else
std::vector<Json> read_parquet_records(const std::filesystem::path& path) {
  auto lines = path;
  lines.replace_extension(".jsonl");
  fail(ErrorKind::Unsupported,
       "{0}: this build cannot read Parquet; build it where Apache Arrow is found, or convert the file to JSON lines: "
       "python3 -c 'import pandas; pandas.read_parquet(\"{0}\").to_json(\"{1}\", orient=\"records\", lines=True)'",
       path.string(), lines.string());
}
#endif

}  // namespace essh
