#include "essh/data/shard.h"

#include <algorithm>
#include <cstring>

#include "essh/base/error.h"
#include "essh/data/xxhash64.h"

namespace essh {
namespace {

struct Header {
  char magic[8] = {'E', 'S', 'S', 'H', 'T', 'O', 'K', 'S'};
  std::uint32_t version = 1;
  std::uint32_t token_bytes = 0;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t checksum = 0;
  std::uint64_t header_checksum = 0;
  char tokenizer_hash[64] = {};
  std::uint32_t vocab_size = 0;
  std::uint32_t reserved[3] = {};
};
static_assert(sizeof(Header) == kShardHeaderBytes);

std::uint64_t checksum_of(Header header) {
  header.header_checksum = 0;
  return xxhash64(std::as_bytes(std::span(&header, 1)));
}

template <class T>
std::int64_t widen(const std::byte* from, std::span<std::int32_t> out) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    largest = std::max<std::uint32_t>(largest, token);
    out[i] = static_cast<std::int32_t>(token);
  }
  return largest;
}

}  // namespace

std::string to_hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::vector<std::byte> shard_header(const TokenFormat& format, std::int64_t tokens, std::int64_t documents,
                                    std::uint64_t checksum) {
  Header header;
  ESSH_ASSERT(format.tokenizer_hash.size() <= sizeof header.tokenizer_hash);
  header.token_bytes = static_cast<std::uint32_t>(format.token_bytes());
  header.tokens = static_cast<std::uint64_t>(tokens);
  header.documents = static_cast<std::uint64_t>(documents);
  header.checksum = checksum;
  header.vocab_size = static_cast<std::uint32_t>(format.vocab_size);
  std::ranges::copy(format.tokenizer_hash, header.tokenizer_hash);
  header.header_checksum = checksum_of(header);
  const auto bytes = std::as_bytes(std::span(&header, 1));
  return {bytes.begin(), bytes.end()};
}

std::vector<SamplePage> sample_pages(std::uint64_t bytes) {
  constexpr std::uint64_t kPages = 64;
  constexpr std::uint64_t kPage = 4096;
  if (bytes <= kPages * kPage) return {{0, static_cast<std::size_t>(bytes)}};
  std::vector<SamplePage> pages;
  for (std::uint64_t i = 0; i < kPages; ++i) pages.push_back({(bytes - kPage) / (kPages - 1) * i, kPage});
  pages.back().offset = bytes - kPage;
  return pages;
}

Shard::Shard(const std::filesystem::path& folder, const ShardEntry& entry, const TokenFormat& format, Verify verify)
    : name_((folder / entry.file).string()),
      file_(name_),
      tokens_(entry.tokens),
      vocab_size_(format.vocab_size),
      token_bytes_(format.token_bytes()) {
  const auto bytes = file_.bytes();
  const auto wanted =
      kShardHeaderBytes + static_cast<std::uint64_t>(tokens_) * static_cast<std::uint64_t>(token_bytes_);
  const auto remedy = "restore the file or prepare the data again";
  if (bytes.size() != wanted) {
    fail(ErrorKind::BadFile, "{}: {} bytes, but the dataset lists {} tokens, which need {}; {}", name_, bytes.size(),
         tokens_, wanted, remedy);
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, Header{}.magic, sizeof header.magic) != 0) {
    fail(ErrorKind::BadFile, "{}: not a token shard", name_);
  }
  if (header.version != 1) {
    fail(ErrorKind::Unsupported, "{}: shard version {}, this build reads version 1", name_, header.version);
  }
  const auto expected = shard_header(format, entry.tokens, entry.documents, header.checksum);
  if (to_hex(header.checksum) != entry.checksum || std::memcmp(expected.data(), bytes.data(), expected.size()) != 0) {
    fail(ErrorKind::BadFile, "{}: the header is not that of the shard in the dataset (changed or swapped); {}", name_,
         remedy);
  }
  const auto payload = bytes.subspan(kShardHeaderBytes);
  XxHash64 sample;
  for (const auto& page : sample_pages(payload.size())) sample.update(payload.subspan(page.offset, page.size));
  if (to_hex(sample.digest()) != entry.sample || (verify == Verify::Full && xxhash64(payload) != header.checksum)) {
    fail(ErrorKind::BadFile, "{}: the tokens are not those that were written (changed or damaged); {}", name_, remedy);
  }
}

void Shard::read(std::int64_t first, std::span<std::int32_t> out) const {
  ESSH_ASSERT(first >= 0 && static_cast<std::int64_t>(out.size()) <= tokens_ - first);
  const auto* from = file_.bytes().data() + kShardHeaderBytes + first * token_bytes_;
  const auto largest = token_bytes_ == 2 ? widen<std::uint16_t>(from, out) : widen<std::uint32_t>(from, out);
  if (!out.empty() && largest >= vocab_size_) {
    fail(ErrorKind::BadFile, "{}: holds the token {}, outside the vocabulary of {}; the file was changed", name_,
         largest, vocab_size_);
  }
}

}  // namespace essh
