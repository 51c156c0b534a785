#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "essh/data/byte_stream.h"
#include "essh/data/document_reader.h"
#include "essh/data/json_field_scanner.h"
#include "essh/data/line_reader.h"

namespace essh {

// Base of the readers of line-based formats: the stream, its lines and the current document.
class LineBasedReader : public DocumentReader {
 public:
  LineBasedReader(const std::filesystem::path& path, SourcePosition start);
  bool read(Block& block) final;

 protected:
  // Adds the next line to the block; false to keep it for the next block, which must accept it.
  virtual bool take(const Line& line, std::uint64_t number, Block& block) = 0;
  // After the last line.
  virtual void end(Block& block) { builder_.finish(block); }
  // Whether reading can resume from here.
  virtual bool between_documents() const { return !builder_.inside(); }

  DocumentBuilder builder_;

 private:
  std::unique_ptr<ByteStream> stream_;
  LineReader lines_;
  Line line_;
  bool held_ = false;
  bool ended_ = false;
  SourcePosition line_start_;
};

class TextReader final : public LineBasedReader {
 public:
  using LineBasedReader::LineBasedReader;

 private:
  bool take(const Line& line, std::uint64_t number, Block& block) override;
};

// The name of a record is the first word of its title.
class FastaReader final : public LineBasedReader {
 public:
  FastaReader(const std::filesystem::path& path, const std::vector<std::string>& holdout, SourcePosition start)
      : LineBasedReader(path, start), holdout_(holdout) {}

 private:
  bool take(const Line& line, std::uint64_t number, Block& block) override;
  bool between_documents() const override { return !in_record_; }

  std::vector<std::string> holdout_;
  bool in_record_ = false;
  bool passing_ = false;  // inside a title or comment line that is read in parts
  bool faulty_ = false;   // the fault of sequence without a title was reported
};

// Whole lines are passed on undecoded. A line longer than LineReader::kWholeLine is decoded here in parts. If such a
// line turns out bad after a piece of its document was passed on, the document ends there and the line counts as bad.
class JsonlReader final : public LineBasedReader {
 public:
  JsonlReader(const std::filesystem::path& path, const std::string& field, SourcePosition start)
      : LineBasedReader(path, start), scanner_(field) {}

 private:
  bool take(const Line& line, std::uint64_t number, Block& block) override;
  bool between_documents() const override { return !in_long_line_; }

  JsonFieldScanner scanner_;
  std::string decoded_;
  bool in_long_line_ = false;
};

std::unique_ptr<DocumentReader> open_parquet_reader(const std::filesystem::path& path, const std::string& column,
                                                    std::uint64_t first_row);

}  // namespace essh
