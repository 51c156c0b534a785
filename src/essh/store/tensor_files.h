#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/store/safetensors.h"

namespace essh {

inline constexpr std::string_view kTensorFileName = "model.safetensors";
inline constexpr std::string_view kTensorIndexName = "model.safetensors.index.json";

struct LocatedTensor {
  const TensorInfo* info;
  const SafetensorsFile* file;
};

// The tensors of a folder: those of model.safetensors, or of the shards that model.safetensors.index.json names.
// Opening checks that index and files agree, and reports all differences in one error.
class TensorFiles {
 public:
  static TensorFiles open(const std::filesystem::path& folder);
  // The same with every file mapped.
  static TensorFiles map(const std::filesystem::path& folder);

  // Sorted by name. Pointers stay valid as long as this object, also after a move.
  const std::vector<LocatedTensor>& tensors() const { return tensors_; }
  // Null if there is none of that name.
  const LocatedTensor* find(std::string_view name) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Bytes of all tensors.
  std::uint64_t total_bytes() const;

  // As SafetensorsFile::read_as.
  template <class T>
  void read_as(const LocatedTensor& tensor, std::span<T> out) const {
    tensor.file->read_as<T>(*tensor.info, out);
  }

 private:
  explicit TensorFiles(std::vector<SafetensorsFile> files);

  std::vector<SafetensorsFile> files_;
  std::vector<LocatedTensor> tensors_;
};

// Writes the tensors of a folder: one file, or several shards and an index above `shard_bytes` of data, filled in the
// order of the list. A tensor is never split. One file is open at a time.
class TensorFilesWriter {
 public:
  static constexpr std::uint64_t kShardBytes = 5'000'000'000;

  TensorFilesWriter(std::filesystem::path folder, const std::vector<TensorSpec>& tensors, Metadata metadata = {},
                    std::uint64_t shard_bytes = kShardBytes);

  // In the order in which their data must be written; TensorInfo places them within their file.
  const std::vector<TensorInfo>& tensors() const { return order_; }
  // As SafetensorsWriter: the next bytes or elements of the first tensor of tensors() that is not complete.
  void write(const TensorInfo& tensor, std::span<const std::byte> bytes);
  template <class T>
  void write_as(const TensorInfo& tensor, std::span<const T> values);
  // Every tensor must be complete. The index is written last.
  void commit();

 private:
  std::string file_name(std::size_t shard) const;
  void open_shard();
  // Opens the next shard while the current one is complete.
  void advance();

  std::filesystem::path folder_;
  Metadata metadata_;
  std::vector<std::vector<TensorSpec>> shards_;
  std::map<std::string, std::size_t> shard_of_;
  std::vector<TensorInfo> order_;
  std::uint64_t total_bytes_ = 0;
  std::size_t shard_ = 0;  // the open one
  std::optional<SafetensorsWriter> file_;
};

}  // namespace essh
