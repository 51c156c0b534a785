#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "essh/base/file.h"
#include "essh/data/shard.h"
#include "essh/data/xxhash64.h"

namespace essh {

// Progress of the shards of a split, enough to continue them byte for byte.
struct ShardProgress {
  std::vector<ShardEntry> finished;
  std::int64_t tokens = 0;  // of the open shard
  std::int64_t documents = 0;
  std::string checksum;  // of its tokens so far
};

// Cuts the token stream of a split into shards of exactly `shard_tokens`, the last one shorter: PREFIX-00000.bin, ...
// An unfinished shard is called PREFIX-00000.bin.part.
class ShardWriter {
 public:
  // Continues at `progress` and removes everything written after it.
  ShardWriter(std::filesystem::path folder, std::string prefix, TokenFormat format, std::int64_t shard_tokens,
              ShardProgress progress = {});

  void append(std::span<const std::int32_t> tokens);
  // Marks the end of the current document.
  void end_document() { ++progress_.documents; }
  std::size_t finished() const { return progress_.finished.size(); }
  // Makes all that was appended durable.
  ShardProgress checkpoint();
  // Ends the last shard; nothing may be appended afterwards.
  std::vector<ShardEntry> finish();

 private:
  std::filesystem::path path(std::size_t index) const;
  void remove_after(std::size_t index) const;
  void resume();
  void open();
  void flush();
  void publish();

  std::filesystem::path folder_;
  std::string prefix_;
  TokenFormat format_;
  std::int64_t shard_tokens_;
  ShardProgress progress_;
  std::optional<AppendFile> file_;
  XxHash64 hash_;
  std::vector<std::byte> buffer_;  // encoded, not yet in the file
};

}  // namespace essh
