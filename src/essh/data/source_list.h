#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "essh/data/dataset_manifest.h"
#include "essh/data/document_reader.h"

namespace essh {

// The sources that the words of a command line name, in their order: "-" is standard input; a folder gives all files
// below it sorted by path, without hidden ones, files that look binary and what lies in `exclude`; a word with *, ? or
// [ that is no file itself is a pattern. A file named twice is taken once. The format goes by the name unless given.
std::vector<SourceFile> find_sources(const std::vector<std::string>& words, std::optional<CorpusFormat> format,
                                     const std::filesystem::path& exclude);

// The file as it is now; its format is left empty.
SourceFile describe_source(const std::string& path);

}  // namespace essh
