// What tests/cli/safetensors_interop.py needs from us to compare with the reference implementation.
#include <CLI/CLI.hpp>

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

int main(int argc, char** argv) {
  CLI::App app{"copies a folder of tensors"};
  std::string from, to, dtype;
  std::uint64_t shard_bytes = essh::TensorFilesWriter::kShardBytes;
  app.add_option("from", from)->required();
  app.add_option("to", to)->required();
  app.add_option("--shard-bytes", shard_bytes);
  app.add_option("--dtype", dtype);
  CLI11_PARSE(app, argc, argv);
  try {
    essh::copy(from, to, shard_bytes, dtype);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
