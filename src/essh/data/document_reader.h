#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "essh/data/document_block.h"

namespace essh {

// Text: documents stand between lines that are exactly kDocumentSeparator; without one the file is one document. The
// bytes are kept as they are, line ends included. Jsonl: one object per line, the document is a string field of it.
// Fasta: one document per record, its sequence lines joined, the title left out. Parquet: one document per row, a
// string column.
enum class CorpusFormat { Text, Jsonl, Fasta, Parquet };
inline constexpr std::string_view kDocumentSeparator = "<|endoftext|>";

// By the extension, that of a compression apart: .jsonl .ndjson .json, .fa .fasta .fna, .parquet; any other is text.
CorpusFormat format_of_name(const std::filesystem::path& path);
const char* format_name(CorpusFormat format);
CorpusFormat parse_format(std::string_view name);

// Reads one source block by block. Bytes after bytes, so of one thread; what is costly is left to decode_block().
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // Fills an empty block; false once the source has ended. Documents may cross blocks.
  virtual bool read(Block& block) = 0;
};

// Reads from `start` on, a position that a resumable block of the same source ended at. The pieces of FASTA records
// named in `holdout` are marked.
std::unique_ptr<DocumentReader> open_document_reader(const std::filesystem::path& path, CorpusFormat format,
                                                     const std::string& field, SourcePosition start = {},
                                                     const std::vector<std::string>& holdout = {});

// Turns undecoded lines into pieces. Pure, so blocks may be decoded on any thread.
void decode_block(Block& block, const std::string& field);

// Whether this build reads Parquet.
bool parquet_available();

}  // namespace essh
