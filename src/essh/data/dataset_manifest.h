#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/data/shard.h"

namespace essh {

struct SourceFile {
  std::string path;  // as named by the user or found below a folder; "-" is standard input
  std::string format;
  std::int64_t size = 0;   // 0 for a pipe
  std::int64_t mtime = 0;  // nanoseconds since 1970, 0 for a pipe
  bool pipe = false;

  bool operator==(const SourceFile&) const = default;
};

// Everything that determines the shards besides the bytes of the sources.
struct DatasetPlan {
  TokenFormat tokens;
  std::int32_t eos_id = 0;
  std::string field;
  double valid_fraction = 0;
  std::vector<std::string> holdout = {};
  std::int64_t shard_tokens = 0;
  int part = 1;
  int parts = 1;
  std::vector<SourceFile> sources;  // of all parts

  bool operator==(const DatasetPlan&) const = default;
};

struct SplitManifest {
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  std::int64_t bytes = 0;  // of text
  std::vector<ShardEntry> shards;
};

// dataset.json, or dataset-IofN.json of a part: written last: its presence means that the shards are complete.
struct DatasetManifest {
  DatasetPlan plan;
  SplitManifest train;
  SplitManifest valid;
  std::int64_t bad_lines = 0;
  std::vector<std::string> first_bad_lines;
};

// "" or "-2of4": infix of the file names of part 2 of 4.
std::string part_suffix(int part, int parts);
std::filesystem::path manifest_path(const std::filesystem::path& folder, int part, int parts);

Json to_json(const DatasetPlan& plan);
Json to_json(const ShardEntry& entry);
DatasetPlan plan_from_json(const Json& object, const std::string& place);
std::vector<ShardEntry> shards_from_json(const Json& list, const std::string& place);

std::string to_text(const DatasetManifest& manifest);
DatasetManifest read_manifest(const std::filesystem::path& path);

// The first difference of two plans, in words; empty if they are equal.
std::string difference(const DatasetPlan& before, const DatasetPlan& now);

}  // namespace essh
