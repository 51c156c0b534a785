#pragma once
#include <unistd.h>

#include <filesystem>

namespace essh::fuzz {

// For files that live for a millisecond: in memory if possible.
inline std::filesystem::path scratch_folder() {
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path();
}

}  // namespace essh::fuzz
