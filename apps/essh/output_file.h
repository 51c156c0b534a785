#pragma once
#include <filesystem>

namespace essh::verbs {

// Before the work starts: a file can be written at `path`; folders above it are made. Nothing to do for an empty path.
void check_output_file(const std::filesystem::path& path);
// Likewise, for files whose loss would hurt: an existing one is refused unless forced.
void check_new_file(const std::filesystem::path& path, bool force);
// A model folder can be made at `path`: nothing is there, or it may be replaced.
void check_new_folder(const std::filesystem::path& path, bool force);

}  // namespace essh::verbs
