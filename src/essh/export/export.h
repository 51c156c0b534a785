#pragma once
#include <filesystem>

#include "essh/model/capacity.h"
#include "essh/store/model_folder.h"

namespace essh {

struct ExportOptions {
  MatrixFormat format = {};
  ExistingFolder existing = ExistingFolder::Refuse;
  std::uint64_t shard_bytes = TensorFilesWriter::kShardBytes;
};

// Writes one capacity of `parent` as a standalone model folder, with the parent's tokenizer files and its hash in
// essh.json. `parent_hash` is model_hash(parent_folder). A target that overlaps with the parent's folder is refused.
void export_tier(const LoadedModel& parent, const std::filesystem::path& parent_folder, const std::string& parent_hash,
                 const Tier& tier, const std::filesystem::path& target, const ExportOptions& options);

}  // namespace essh
