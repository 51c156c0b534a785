#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace essh {

// Sequential decompressed bytes of one input. Errors name the file.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills at most out.size() bytes and returns how many; 0 only at the end.
  virtual std::size_t read(std::span<char> out) = 0;
  // Skips `count` bytes; an input that ends earlier is an error.
  virtual void skip(std::uint64_t count) = 0;
  // Bytes of the (possibly compressed) file consumed so far.
  virtual std::uint64_t consumed() const = 0;
};

// A regular file, a pipe, or standard input for "-". gzip and zstd are recognised by their first bytes.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

// Whether this build reads zstd.
bool zstd_available();

}  // namespace essh
