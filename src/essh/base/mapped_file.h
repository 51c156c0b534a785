#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace essh {

struct Mapping;

// A regular file mapped for reading. If the file shrinks or its disk fails, a read cannot throw: the process ends with
// a message that names the file, and exit code 3.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  Mapping* mapping_ = nullptr;
};

}  // namespace essh
