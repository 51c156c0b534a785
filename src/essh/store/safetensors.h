#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "essh/base/file.h"
#include "essh/base/mapped_file.h"
#include "essh/store/safetensors_header.h"

namespace essh {

// A safetensors file open for reading. The whole header is checked on opening; data is read by position, on demand.
// Thread-safe without locks.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);
  // The same reader over bytes that must outlive it; messages start with `place`.
  static SafetensorsFile from_memory(std::span<const std::byte> image, std::string place);

  // In the order of their data.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  // Null if there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  const Metadata& metadata() const { return header_.metadata; }
  // The path, as messages name it.
  const std::string& place() const { return place_; }

  // Maps the file for mapped() (MappedFile).
  void map();
  // The stored bytes of a tensor, without a copy; the file must have been mapped.
  std::span<const std::byte> mapped(const TensorInfo& tensor) const;
  // The stored bytes; out.size() == tensor.bytes().
  void read(const TensorInfo& tensor, std::span<std::byte> out) const;
  // Converted from F32, BF16, F16 or F64; any other dtype is an error. T is float, double or BFloat16,
  // out.size() == tensor.elements().
  template <class T>
  void read_as(const TensorInfo& tensor, std::span<T> out) const;

 private:
  using Source = std::variant<InputFile, std::span<const std::byte>>;
  SafetensorsFile(Source source, std::string place);
  std::uint64_t source_size() const;
  void read_source(std::uint64_t offset, std::span<std::byte> out) const;

  Source source_;
  std::string place_;
  SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
  std::optional<MappedFile> mapping_;
};

// Writes a safetensors file incrementally; it appears atomically on commit(). Memory: the header and one buffer.
class SafetensorsWriter {
 public:
  // The metadata entry "format" = "pt" is always added: other readers refuse files without it.
  SafetensorsWriter(const std::filesystem::path& target, const std::vector<TensorSpec>& tensors,
                    Metadata metadata = {});

  // In the order in which their data must be written.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  // The next bytes of `tensor`, which must be the first of tensors() that is not complete.
  void write(const TensorInfo& tensor, std::span<const std::byte> bytes);
  // The next elements, converted to the dtype of the tensor (F32, BF16, F16 or F64). T is float, double or BFloat16.
  template <class T>
  void write_as(const TensorInfo& tensor, std::span<const T> values);
  bool complete() const { return current_ == header_.tensors.size(); }
  // Every tensor must be complete.
  void commit();

 private:
  void skip_complete();

  SafetensorsHeader header_;
  DurableFile file_;
  std::size_t current_ = 0;    // index of the tensor that is being written
  std::uint64_t written_ = 0;  // bytes of data so far
};

// Fails if the file system of `folder` has less than `bytes` bytes free.
void require_space(const std::filesystem::path& folder, std::uint64_t bytes);

}  // namespace essh
