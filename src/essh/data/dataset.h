#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "essh/data/shard.h"

namespace essh {

// The token stream of one split. Reading is thread-safe.
class TokenStream {
 public:
  TokenStream() = default;
  explicit TokenStream(std::vector<Shard> shards);

  std::int64_t tokens() const { return starts_.back(); }
  // Tokens [first, first + out.size()).
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  // Windows of context + 1 tokens, `context` apart, so that each token except the first is predicted once. A shorter
  // remainder is dropped.
  std::int64_t windows(std::int64_t context) const;
  // Window `index`; out has context + 1 elements.
  void read_window(std::int64_t index, std::span<std::int32_t> out) const;

 private:
  std::vector<Shard> shards_;
  std::vector<std::int64_t> starts_{0};  // of each shard, and the end
};

// A folder that `essh prepare` wrote: dataset.json, or the complete set of dataset-1ofN.json to dataset-NofN.json.
class Dataset {
 public:
  explicit Dataset(const std::filesystem::path& folder, Verify verify = Verify::Quick);

  const TokenStream& train() const { return train_; }
  const TokenStream& valid() const { return valid_; }
  // Text bytes per token, counting end-of-text tokens; 0 for an empty split. Bits per byte = mean loss in bits / this.
  double valid_bytes_per_token() const { return valid_bytes_per_token_; }
  std::int64_t vocab_size() const { return format_.vocab_size; }
  std::int32_t eos_id() const { return eos_id_; }
  // Bytes per token in the shards.
  int token_bytes() const { return format_.token_bytes(); }
  const std::string& tokenizer_hash() const { return format_.tokenizer_hash; }
  // A hash of all tokens in order; kept in checkpoints, so that resuming with other data is an error.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  TokenFormat format_;
  std::int32_t eos_id_ = 0;
  TokenStream train_;
  TokenStream valid_;
  double valid_bytes_per_token_ = 0;
  std::string fingerprint_;
};

}  // namespace essh
