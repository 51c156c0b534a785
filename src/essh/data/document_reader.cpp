#include "essh/data/document_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "essh/base/error.h"
#include "essh/data/line_based_readers.h"

namespace essh {
namespace {

constexpr std::array<std::pair<CorpusFormat, const char*>, 4> kFormatNames = {{{CorpusFormat::Text, "text"},
                                                                               {CorpusFormat::Jsonl, "jsonl"},
                                                                               {CorpusFormat::Fasta, "fasta"},
                                                                               {CorpusFormat::Parquet, "parquet"}}};

std::string lower_extension(const std::filesystem::path& path) {
  auto extension = path.extension().string();
  for (auto& letter : extension) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter + ('a' - 'A'));
  }
  return extension;
}

}  // namespace

CorpusFormat format_of_name(const std::filesystem::path& path) {
  auto extension = lower_extension(path);
  if (extension == ".gz" || extension == ".zst") extension = lower_extension(path.stem());
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") return CorpusFormat::Jsonl;
  if (extension == ".fa" || extension == ".fasta" || extension == ".fna") return CorpusFormat::Fasta;
  if (extension == ".parquet") return CorpusFormat::Parquet;
  return CorpusFormat::Text;
}

const char* format_name(CorpusFormat format) {
  return std::ranges::find(kFormatNames, format, &std::pair<CorpusFormat, const char*>::first)->second;
}

CorpusFormat parse_format(std::string_view name) {
  for (const auto& [format, known] : kFormatNames) {
    if (name == known) return format;
  }
  fail(ErrorKind::Usage, "no corpus format \"{}\": text, jsonl, fasta or parquet", name);
}

std::unique_ptr<DocumentReader> open_document_reader(const std::filesystem::path& path, CorpusFormat format,
                                                     const std::string& field, SourcePosition start,
                                                     const std::vector<std::string>& holdout) {
  switch (format) {
    case CorpusFormat::Text:
      return std::make_unique<TextReader>(path, start);
    case CorpusFormat::Jsonl:
      return std::make_unique<JsonlReader>(path, field, start);
    case CorpusFormat::Fasta:
      return std::make_unique<FastaReader>(path, holdout, start);
    case CorpusFormat::Parquet:
      if (!std::filesystem::is_regular_file(path))
        fail(ErrorKind::Unsupported, "{}: Parquet is read from regular files only; copy it into one", path.string());
      return open_parquet_reader(path, field, start.offset);
  }
  fail(ErrorKind::Internal, "unknown corpus format");
}

}  // namespace essh
