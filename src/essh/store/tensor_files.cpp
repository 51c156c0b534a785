#include "essh/store/tensor_files.h"

#include <algorithm>

#include "essh/base/error.h"
#include "essh/base/json.h"
#include "essh/base/utf8.h"
#include "essh/store/problems.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// An index must not refer to files outside its folder.
bool is_plain_file_name(std::string_view name) {
  return name.size() <= 255 && name.ends_with(".safetensors") && !name.starts_with('.') &&
         std::ranges::none_of(name, [](unsigned char c) { return c == '/' || c == '\\' || c < 0x20 || c == 0x7f; });
}

bool is_there(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

struct ShardIndex {
  std::map<std::string, std::string> file_of;  // tensor name -> file name
  std::optional<std::uint64_t> total_size;
};

ShardIndex read_index(const fs::path& path, Problems& problems) {
  const Json json = read_json(path, {.bytes = kMaxHeaderBytes});
  const auto weight_map = json.is_object() ? json.find("weight_map") : json.end();
  if (weight_map == json.end() || !weight_map->is_object()) {
    fail(ErrorKind::BadFile, "{}: expected an object with an object \"weight_map\"", path.string());
  }
  ShardIndex index;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string()) {
      problems.add(fmt::format("weight_map: the value of {} must be a string", in_quotes(name)));
    } else {
      index.file_of.emplace(name, file.get<std::string>());
    }
  }
  const auto metadata = json.find("metadata");
  if (metadata == json.end()) return index;
  const auto total = metadata->is_object() ? metadata->find("total_size") : metadata->end();
  if (total == metadata->end()) return index;
  if (total->is_number_unsigned()) {
    index.total_size = total->get<std::uint64_t>();
  } else {
    problems.add("metadata: total_size must be a whole number");
  }
  return index;
}

using OpenFiles = std::map<std::string, SafetensorsFile>;

OpenFiles open_shards(const fs::path& folder, const ShardIndex& index, Problems& problems) {
  std::map<std::string, std::size_t> tensors_in;
  for (const auto& [name, file] : index.file_of) ++tensors_in[file];
  OpenFiles files;
  for (const auto& [file, tensors] : tensors_in) {
    if (!is_plain_file_name(file)) {
      problems.add(fmt::format("weight_map names the file {}; only .safetensors files of this folder may be named",
                               in_quotes(file)));
    } else if (!is_there(folder / file)) {
      problems.add(fmt::format("{} is missing, with {} tensors; copy it into the folder", file, tensors));
    } else {
      try {
        files.emplace(file, SafetensorsFile::open(folder / file));
      } catch (const Error& error) {
        problems.add(error.what());
      }
    }
  }
  return files;
}

void compare(const ShardIndex& index, const OpenFiles& files, Problems& problems) {
  for (const auto& [name, file] : index.file_of) {
    const auto found = files.find(file);
    if (found == files.end() || found->second.find(name) != nullptr) continue;
    const auto other =
        std::ranges::find_if(files, [&](const auto& entry) { return entry.second.find(name) != nullptr; });
    problems.add(fmt::format("tensor {} is not in {}, where the index puts it{}", in_quotes(name), file,
                             other == files.end() ? "" : fmt::format(", but in {}", other->first)));
  }
  std::uint64_t total = 0;
  for (const auto& [file, contents] : files) {
    for (const auto& tensor : contents.tensors()) {
      total += tensor.bytes();
      const auto listed = index.file_of.find(tensor.name);
      if (listed == index.file_of.end()) {
        problems.add(fmt::format("tensor {} of {} is not in the index", in_quotes(tensor.name), file));
      } else if (listed->second != file) {
        const auto owner = files.find(listed->second);
        if (owner != files.end() && owner->second.find(tensor.name) != nullptr) {
          problems.add(fmt::format("tensor {} is in {} and again in {}", in_quotes(tensor.name), owner->first, file));
        }
      }
    }
  }
  if (problems.empty() && index.total_size && *index.total_size != total) {
    problems.add(fmt::format("metadata: total_size is {}, the tensors have {} bytes", *index.total_size, total));
  }
}

}  // namespace

TensorFiles::TensorFiles(std::vector<SafetensorsFile> files) : files_(std::move(files)) {
  for (const auto& file : files_) {
    for (const auto& tensor : file.tensors()) tensors_.push_back({&tensor, &file});
  }
  std::ranges::sort(tensors_, {}, [](const LocatedTensor& t) -> const std::string& { return t.info->name; });
}

TensorFiles TensorFiles::open(const fs::path& folder) {
  const fs::path single = folder / kTensorFileName, index_path = folder / kTensorIndexName;
  const bool has_single = is_there(single), has_index = is_there(index_path);
  if (!has_single && !has_index) {
    fail(ErrorKind::BadFile, "{}: neither {} nor {} is there; this is no model folder", folder.string(),
         kTensorFileName, kTensorIndexName);
  }
  if (has_single && has_index) {
    fail(ErrorKind::BadFile, "{}: both {} and {} are there; remove the one that does not belong", folder.string(),
         kTensorFileName, kTensorIndexName);
  }
  std::vector<SafetensorsFile> files;
  if (has_single) {
    files.push_back(SafetensorsFile::open(single));
    return TensorFiles(std::move(files));
  }
  Problems problems;
  const ShardIndex index = read_index(index_path, problems);
  OpenFiles shards = open_shards(folder, index, problems);
  compare(index, shards, problems);
  problems.fail_if_any(index_path.string());
  for (auto& [name, shard] : shards) files.push_back(std::move(shard));
  return TensorFiles(std::move(files));
}

TensorFiles TensorFiles::map(const fs::path& folder) {
  auto files = open(folder);
  for (auto& file : files.files_) file.map();
  return files;
}

const LocatedTensor* TensorFiles::find(std::string_view name) const {
  const auto name_of = [](const LocatedTensor& t) -> std::string_view { return t.info->name; };
  const auto found = std::ranges::lower_bound(tensors_, name, {}, name_of);
  return found != tensors_.end() && name_of(*found) == name ? &*found : nullptr;
}

std::uint64_t TensorFiles::total_bytes() const {
  std::uint64_t total = 0;
  for (const auto& tensor : tensors_) total += tensor.info->bytes();
  return total;
}

TensorFilesWriter::TensorFilesWriter(fs::path folder, const std::vector<TensorSpec>& tensors, Metadata metadata,
                                     std::uint64_t shard_bytes)
    : folder_(std::move(folder)), metadata_(std::move(metadata)), shards_(1) {
  std::uint64_t filled = 0;
  for (const auto& tensor : tensors) {
    const std::uint64_t bytes = checked_tensor_bytes(tensor, folder_.string());
    if (!shards_.back().empty() && (bytes > shard_bytes || filled > shard_bytes - bytes)) {
      shards_.emplace_back();
      filled = 0;
    }
    shards_.back().push_back(tensor);
    if (!shard_of_.emplace(tensor.name, shards_.size() - 1).second) {
      fail(ErrorKind::BadFile, "{}: the tensor {} occurs twice", folder_.string(), in_quotes(tensor.name));
    }
    if (__builtin_add_overflow(filled, bytes, &filled) || __builtin_add_overflow(total_bytes_, bytes, &total_bytes_)) {
      fail(ErrorKind::BadFile, "{}: the tensors together have more than 2^64 bytes", folder_.string());
    }
  }
  require_space(folder_, total_bytes_);
  for (const auto& shard : shards_) {
    for (auto& tensor : plan_safetensors(shard, {}, folder_.string()).tensors) order_.push_back(std::move(tensor));
  }
  open_shard();
}

std::string TensorFilesWriter::file_name(std::size_t shard) const {
  if (shards_.size() == 1) return std::string(kTensorFileName);
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards_.size());
}

void TensorFilesWriter::open_shard() {
  file_.emplace(folder_ / file_name(shard_), shards_[shard_], metadata_);
}

void TensorFilesWriter::advance() {
  while (file_->complete() && shard_ + 1 < shards_.size()) {
    file_->commit();
    ++shard_;
    open_shard();
  }
}

void TensorFilesWriter::write(const TensorInfo& tensor, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  advance();
  file_->write(tensor, bytes);
}

template <class T>
void TensorFilesWriter::write_as(const TensorInfo& tensor, std::span<const T> values) {
  if (values.empty()) return;
  advance();
  file_->write_as<T>(tensor, values);
}

template void TensorFilesWriter::write_as(const TensorInfo&, std::span<const float>);
template void TensorFilesWriter::write_as(const TensorInfo&, std::span<const double>);
template void TensorFilesWriter::write_as(const TensorInfo&, std::span<const BFloat16>);

void TensorFilesWriter::commit() {
  advance();
  ESSH_ASSERT(shard_ + 1 == shards_.size());
  file_->commit();
  if (shards_.size() == 1) return;
  std::string text =
      fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total_bytes_);
  const char* separator = "\n";
  for (const auto& [name, shard] : shard_of_) {
    text += fmt::format("{}    {}: \"{}\"", separator, to_text(Json(name)), file_name(shard));
    separator = ",\n";
  }
  write_durably(folder_ / kTensorIndexName, text + "\n  }\n}\n");
}

}  // namespace essh
