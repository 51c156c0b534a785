#include <algorithm>
#include <array>
#include <string>

#include "essh/base/error.h"
#include "essh/data/line_based_readers.h"

#if ESSH_HAVE_PARQUET
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/schema.h>
#endif

namespace essh {

#if ESSH_HAVE_PARQUET
namespace {

// A flat string column, row group by row group and page by page: holds one page in memory.
class ParquetReader final : public DocumentReader {
 public:
  ParquetReader(const std::filesystem::path& path, const std::string& column, std::uint64_t first_row)
      : name_(path.string()), size_(std::filesystem::file_size(path)), row_(first_row) {
    guarded([&] {
      auto properties = parquet::default_reader_properties();
      properties.enable_buffered_stream();
      file_ = parquet::ParquetFileReader::OpenFile(name_, false, properties);
      select(column);
      rows_ = static_cast<std::uint64_t>(file_->metadata()->num_rows());
      seek();
    });
  }

  bool read(Block& block) override {
    if (ended_) return false;
    guarded([&] {
      while (block.size() < kBlockBytes && next_row()) take(block);
    });
    ended_ = row_ == rows_;
    block.resumable = !inside_row_;
    block.end = {row_, row_ + 1};
    block.consumed = rows_ == 0 ? size_
                                : static_cast<std::uint64_t>(static_cast<double>(size_) * static_cast<double>(row_) /
                                                             static_cast<double>(rows_));
    return true;
  }

 private:
  static constexpr std::int64_t kBatch = 256;

  template <class Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const parquet::ParquetException& error) {
      fail(ErrorKind::BadFile, "{}: cannot read this Parquet file: {}", name_, error.what());
    }
  }

  void select(const std::string& column) {
    const auto* schema = file_->metadata()->schema();
    column_ = schema->ColumnIndex(column);
    if (column_ < 0) {
      std::string known;
      for (int i = 0; i < std::min(schema->num_columns(), 20); ++i) {
        known += (i > 0 ? ", " : "") + schema->Column(i)->path()->ToDotString();
      }
      fail(ErrorKind::BadFile, "{}: no column \"{}\"; choose one as the field: {}", name_, column, known);
    }
    const auto* descriptor = schema->Column(column_);
    if (descriptor->physical_type() != parquet::Type::BYTE_ARRAY || descriptor->max_repetition_level() != 0 ||
        descriptor->max_definition_level() > 1) {
      fail(ErrorKind::Unsupported, "{}: the column \"{}\" is not a flat column of strings", name_, column);
    }
    optional_ = descriptor->max_definition_level() == 1;
  }

  // Opens the row group of row_ and skips the rows before it.
  void seek() {
    auto skipped = row_;
    for (group_ = 0; group_ < file_->metadata()->num_row_groups(); ++group_) {
      const auto rows = static_cast<std::uint64_t>(file_->metadata()->RowGroup(group_)->num_rows());
      if (skipped < rows) {
        open_group();
        while (skipped > 0) {
          const auto passed = values_reader_->Skip(static_cast<std::int64_t>(skipped));
          if (passed <= 0) fail(ErrorKind::BadFile, "{}: row group {} has fewer rows than stated", name_, group_);
          skipped -= static_cast<std::uint64_t>(passed);
        }
        return;
      }
      skipped -= rows;
    }
    if (skipped > 0) fail(ErrorKind::BadFile, "{}: has only {} rows, cannot continue at row {}", name_, rows_, row_);
  }

  void open_group() {
    column_reader_ = file_->RowGroup(group_)->Column(column_);
    values_reader_ = static_cast<parquet::ByteArrayReader*>(column_reader_.get());
    level_ = levels_read_ = 0;
  }

  // Advances to the row at row_; false after the last.
  bool next_row() {
    if (inside_row_) return true;
    while (row_ < rows_ && level_ == levels_read_) {
      if (!values_reader_->HasNext()) {
        if (++group_ >= file_->metadata()->num_row_groups()) {
          fail(ErrorKind::BadFile, "{}: the column ends at row {} of {}", name_, row_, rows_);
        }
        open_group();
        continue;
      }
      std::int64_t values = 0;
      levels_read_ = values_reader_->ReadBatch(kBatch, definition_.data(), nullptr, values_.data(), &values);
      level_ = value_ = 0;
    }
    return row_ < rows_;
  }

  void take(Block& block) {
    if (optional_ && definition_[static_cast<std::size_t>(level_)] == 0) {
      block.add_fault(row_ + 1, LineFault::NullRow);
      end_row();
      return;
    }
    const auto& value = values_[static_cast<std::size_t>(value_)];
    const std::string_view cell(reinterpret_cast<const char*>(value.ptr), value.len);
    const auto part = cell.substr(taken_, kPieceBytes);
    builder_.append(part, block);
    taken_ += part.size();
    inside_row_ = taken_ < cell.size();
    if (inside_row_) return;
    builder_.finish(block);
    ++value_;
    end_row();
  }

  void end_row() {
    taken_ = 0;
    ++level_;
    ++row_;
  }

  std::string name_;
  std::uint64_t size_;
  std::uint64_t row_;  // current row of the file
  std::uint64_t rows_ = 0;
  bool ended_ = false;
  bool optional_ = false;
  bool inside_row_ = false;
  std::size_t taken_ = 0;  // bytes of the current cell already read
  int column_ = 0;
  int group_ = 0;
  std::unique_ptr<parquet::ParquetFileReader> file_;
  std::shared_ptr<parquet::ColumnReader> column_reader_;
  parquet::ByteArrayReader* values_reader_ = nullptr;
  std::array<parquet::ByteArray, kBatch> values_;
  std::array<std::int16_t, kBatch> definition_{};
  std::int64_t levels_read_ = 0;
  std::int64_t level_ = 0;
  std::int64_t value_ = 0;
  DocumentBuilder builder_;
};

}  // namespace

bool parquet_available() {
  return true;
}

std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const std::string& column,
                                                    std::uint64_t first_row) {
  return std::make_unique<ParquetReader>(path, column, first_row);
}

#else

bool parquet_available() {
  return false;
}

std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const std::string&,
                                                    std::uint64_t) {
  fail(ErrorKind::Unsupported,
       "{}: this build reads no Parquet; install Apache Arrow (libparquet-dev, or \"pip install pyarrow\") and "
       "configure again, "
       "or convert the file to JSONL",
       path.string());
}

#endif

}  // namespace essh
