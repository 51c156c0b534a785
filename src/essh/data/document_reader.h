#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "essh/data/document_block.h"

namespace essh {

// Text: documents are separated by lines that are exactly kDocumentSeparator; a file without one is one document. Bytes
// are kept unchanged, line ends included. Jsonl: one object per line; the document is one of its string fields. Fasta:
// one document per record, sequence lines joined, without the title. Parquet: one document per row, a string column.
enum class CorpusFormat { Text, Jsonl, Fasta, Parquet };
inline constexpr std::string_view kDocumentSeparator = "<|endoftext|>";

// By the extension, after removing that of a compression: .jsonl .ndjson .json, .fa .fasta .fna, .parquet; any other is
// text.
CorpusFormat format_of_name(const std::filesystem::path& path);
const char* format_name(CorpusFormat format);
CorpusFormat parse_format(std::string_view name);

// Reads one source block by block, on one thread. Expensive work is left to decode_block().
class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // Fills an empty block; false once the source has ended. Documents may cross blocks.
  virtual bool read(Block& block) = 0;
};

// Reads from `start`, the end of a resumable block of the same source. Pieces of FASTA records named in `holdout` are
// marked.
std::unique_ptr<DocumentReader> open_document_reader(const std::filesystem::path& path, CorpusFormat format,
                                                     const std::string& field, SourcePosition start = {},
                                                     const std::vector<std::string>& holdout = {});

// Decodes lines into pieces. A pure function, callable on any thread.
void decode_block(Block& block, const std::string& field);

// Whether this build reads Parquet.
bool parquet_available();

}  // namespace essh
