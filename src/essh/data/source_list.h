#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "essh/data/dataset_manifest.h"
#include "essh/data/document_reader.h"

namespace essh {

// The sources named on a command line, in order: "-" is standard input; a folder gives all files below it sorted by
// path, without hidden files, files that look binary and files in `exclude`; a word with *, ? or [ that is not a file
// is a pattern. Duplicates are taken once. The file name selects the format unless one is given.
std::vector<SourceFile> find_sources(const std::vector<std::string>& words, std::optional<CorpusFormat> format,
                                     const std::filesystem::path& exclude);

// Size and time of a file; the format is left empty.
SourceFile describe_source(const std::string& path);

}  // namespace essh
