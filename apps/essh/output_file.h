#pragma once
#include <filesystem>

namespace essh::verbs {

// Checks before the work starts that `path` can be written, and creates the folders above it. No-op for an empty path.
void check_output_file(const std::filesystem::path& path);
// The same for files whose loss would hurt: refuses an existing one unless forced.
void check_new_file(const std::filesystem::path& path, bool force);
// Checks that a model folder can be created at `path`: nothing is there, or it may be replaced.
void check_new_folder(const std::filesystem::path& path, bool force);

}  // namespace essh::verbs
