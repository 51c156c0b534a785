#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/store/problems.h"

namespace essh {

inline constexpr std::string_view kManifestName = "SHA256SUMS";

// Writes SHA256SUMS over every file of the folder and its sub-folders, sorted by name, durably; `sha256sum -c` reads
// it. Written last: its presence marks the folder as complete.
void write_manifest(const std::filesystem::path& folder);

// Lists files of the manifest that are missing or differ, and names in `required` that are not listed. A manifest that
// is missing, empty or malformed is an Error. unlisted_files() finds the files that the manifest does not cover.
Problems check_manifest(const std::filesystem::path& folder, std::span<const std::string> required = {});

// Files and links of the folder and its sub-folders that its manifest does not list, sorted; without temporaries of
// other writers.
std::vector<std::string> unlisted_files(const std::filesystem::path& folder);

}  // namespace essh
