#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "essh/base/mapped_file.h"
#include "essh/config/field.h"

namespace essh {

// A shard is a 128-byte little-endian header and then its tokens, 2 or 4 bytes each:
//   0 "ESSHTOKS"   8 u32 version (1)   12 u32 bytes per token   16 u64 tokens   24 u64 documents that end here
//   32 u64 XXH64 of the tokens   40 u64 XXH64 of this header with this field zero   48 char[64] tokenizer hash
//   112 u32 vocabulary size   116 zeros
inline constexpr std::size_t kShardHeaderBytes = 128;
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 48;  // of a split

// A finished shard as the manifest lists it.
struct ShardEntry {
  std::string file;  // a plain name in the folder of the manifest
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  std::string checksum;  // XXH64 of the tokens, hexadecimal
  std::string sample;    // XXH64 of 64 pages spread over the tokens
};

template <class Visitor>
void fields(Visitor& visit, ShardEntry& entry) {
  visit("file", entry.file, {.required = true});
  visit("tokens", entry.tokens, {.min = 0, .max = static_cast<double>(kMostTokens), .required = true});
  visit("documents", entry.documents, {.min = 0, .max = static_cast<double>(kMostTokens), .required = true});
  visit("checksum", entry.checksum, {.required = true});
  visit("sample", entry.sample, {.required = true});
}

// What every shard of a dataset has in common.
struct TokenFormat {
  std::string tokenizer_hash;  // at most 64 characters
  std::int64_t vocab_size = 0;

  int token_bytes() const { return vocab_size <= 65536 ? 2 : 4; }
  bool operator==(const TokenFormat&) const = default;
};

std::string to_hex(std::uint64_t value);

// The header of a shard with these facts.
std::vector<std::byte> shard_header(const TokenFormat& format, std::int64_t tokens, std::int64_t documents,
                                    std::uint64_t checksum);
// The positions of the pages, in a payload of `bytes` bytes, that the sample of an entry hashes.
struct SamplePage {
  std::uint64_t offset;
  std::size_t size;
};
std::vector<SamplePage> sample_pages(std::uint64_t bytes);

enum class Verify {
  Quick,  // size, header and sampled pages
  Full,   // every token as well
};

// A memory-mapped shard. A file that does not match its entry is an error that names it.
class Shard {
 public:
  Shard(const std::filesystem::path& folder, const ShardEntry& entry, const TokenFormat& format, Verify verify);

  std::int64_t tokens() const { return tokens_; }
  const std::string& name() const { return name_; }
  // Reads tokens [first, first + out.size()); an id outside the vocabulary is an error.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

 private:
  std::string name_;
  MappedFile file_;
  std::int64_t tokens_;
  std::int64_t vocab_size_;
  int token_bytes_;
};

}  // namespace essh
