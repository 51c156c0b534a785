// The tool of tests/cli/safetensors_interop.py, which compares us with the reference implementation.
#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "essh/base/error.h"
#include "essh/store/tensor_files.h"

namespace essh {
namespace {

// Copies the tensors of a folder bit by bit, or with a dtype converted through float.
void copy(const std::string& from, const std::string& to, std::uint64_t shard_bytes, const std::string& dtype_name) {
  const auto files = TensorFiles::open(from);
  std::vector<TensorSpec> specs;
  for (const auto& tensor : files.tensors()) specs.push_back(*tensor.info);
  if (!dtype_name.empty()) {
    for (auto& spec : specs) spec.dtype = dtype_from_name(dtype_name).value();
  }
  make_folder(to);
  TensorFilesWriter writer(to, specs, {}, shard_bytes);
  for (const auto& tensor : writer.tensors()) {
    const auto& source = *files.find(tensor.name);
    if (dtype_name.empty()) {
      std::vector<std::byte> bytes(source.info->bytes());
      source.file->read(*source.info, bytes);
      writer.write(tensor, bytes);
    } else {
      std::vector<float> values(source.info->elements());
      files.read_as<float>(source, values);
      writer.write_as<float>(tensor, values);
    }
  }
  writer.commit();
}

}  // namespace
}  // namespace essh

// usage: store_interop_tool FROM TO [--shard-bytes N] [--dtype NAME]. Without CLI11, which would dominate the compile
// time.
int main(int argc, char** argv) {
  std::string dtype;
  std::uint64_t shard_bytes = essh::TensorFilesWriter::kShardBytes;
  bool usable = argc >= 3 && argc % 2 == 1;
  for (int i = 3; usable && i < argc; i += 2) {
    const std::string_view option = argv[i], value = argv[i + 1];
    if (option == "--dtype") {
      dtype = value;
    } else {
      const auto end = value.data() + value.size();
      usable = option == "--shard-bytes" && std::from_chars(value.data(), end, shard_bytes).ptr == end;
    }
  }
  if (!usable) {
    fmt::print(stderr, "usage: store_interop_tool FROM TO [--shard-bytes N] [--dtype NAME]\n");
    return 2;
  }
  try {
    essh::copy(argv[1], argv[2], shard_bytes, dtype);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
