#include "essh/data/shard_writer.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "essh/base/error.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kBufferBytes = 256u << 10;
constexpr std::string_view kPartSuffix = ".part";

fs::path part_of(fs::path path) {
  return path += kPartSuffix;
}

template <class T>
void encode(std::span<const std::int32_t> tokens, std::vector<std::byte>& buffer) {
  const auto begin = buffer.size();
  buffer.resize(begin + tokens.size() * sizeof(T));
  auto* to = buffer.data() + begin;
  for (const auto token : tokens) {
    const auto narrow = static_cast<T>(token);
    std::memcpy(to, &narrow, sizeof narrow);
    to += sizeof narrow;
  }
}

}  // namespace

ShardWriter::ShardWriter(fs::path folder, std::string prefix, TokenFormat format, std::int64_t shard_tokens,
                         ShardProgress progress)
    : folder_(std::move(folder)),
      prefix_(std::move(prefix)),
      format_(std::move(format)),
      shard_tokens_(shard_tokens),
      progress_(std::move(progress)) {
  ESSH_ASSERT(shard_tokens_ > 0);
  resume();
}

fs::path ShardWriter::path(std::size_t index) const {
  return folder_ / fmt::format("{}-{:05}.bin", prefix_, index);
}

// Removes files numbered after the open shard: they were written after the checkpoint.
void ShardWriter::remove_after(std::size_t index) const {
  for (const auto& entry : fs::directory_iterator(folder_)) {
    std::string name = entry.path().filename().string();
    if (name.ends_with(kPartSuffix)) name.resize(name.size() - kPartSuffix.size());
    if (!name.starts_with(prefix_ + "-") || !name.ends_with(".bin")) continue;
    const char* from = name.data() + prefix_.size() + 1;
    const char* end = name.data() + name.size() - 4;
    std::size_t number = 0;
    const auto [stop, status] = std::from_chars(from, end, number);
    if (status == std::errc{} && stop == end && number > index) fs::remove(entry.path());
  }
}

void ShardWriter::resume() {
  const auto index = progress_.finished.size();
  for (std::size_t i = 0; i < index; ++i) {
    if (!fs::exists(path(i)))
      fail(ErrorKind::BadFile, "{}: missing; it was written before the interruption", path(i).string());
  }
  remove_after(index);
  const auto target = path(index);
  const auto part = part_of(target);
  if (progress_.tokens == 0) {
    fs::remove(target);
    fs::remove(part);
    return;
  }
  // The shard may have been published after the checkpoint.
  if (fs::exists(target)) fs::rename(target, part);
  const auto bytes = static_cast<std::uint64_t>(progress_.tokens * format_.token_bytes());
  file_.emplace(part, kShardHeaderBytes + bytes);
  const InputFile written(part);
  std::vector<std::byte> piece(kBufferBytes);
  for (std::uint64_t done = 0; done < bytes; done += piece.size()) {
    const auto size = std::min<std::uint64_t>(piece.size(), bytes - done);
    written.read(kShardHeaderBytes + done, std::span(piece).first(size));
    hash_.update(std::span(piece).first(size));
  }
  if (to_hex(hash_.digest()) != progress_.checksum) {
    fail(ErrorKind::BadFile, "{}: changed since the interruption; remove the folder and start again", part.string());
  }
}

void ShardWriter::open() {
  file_.emplace(part_of(path(progress_.finished.size())), 0);
  file_->append(std::vector<std::byte>(kShardHeaderBytes));
  hash_ = {};
}

void ShardWriter::append(std::span<const std::int32_t> tokens) {
  while (!tokens.empty()) {
    if (!file_) open();
    const auto room = static_cast<std::size_t>(shard_tokens_ - progress_.tokens);
    const auto now = tokens.first(std::min({tokens.size(), room, kBufferBytes / 4}));
    if (format_.token_bytes() == 2)
      encode<std::uint16_t>(now, buffer_);
    else
      encode<std::uint32_t>(now, buffer_);
    progress_.tokens += static_cast<std::int64_t>(now.size());
    tokens = tokens.subspan(now.size());
    if (buffer_.size() >= kBufferBytes) flush();
    // A full shard stays open until the next token, so that it still counts the end of its last document.
    if (!tokens.empty() && progress_.tokens == shard_tokens_) publish();
  }
}

void ShardWriter::flush() {
  hash_.update(buffer_);
  file_->append(buffer_);
  buffer_.clear();
}

ShardProgress ShardWriter::checkpoint() {
  if (file_) {
    flush();
    file_->sync();
    progress_.checksum = to_hex(hash_.digest());
  }
  return progress_;
}

void ShardWriter::publish() {
  flush();
  const auto target = path(progress_.finished.size());
  const auto header = shard_header(format_, progress_.tokens, progress_.documents, hash_.digest());
  file_->overwrite(0, header);
  XxHash64 sample;
  const InputFile written(file_->path());
  for (const auto& page : sample_pages(written.size() - kShardHeaderBytes)) {
    std::vector<std::byte> bytes(page.size);
    written.read(kShardHeaderBytes + page.offset, bytes);
    sample.update(bytes);
  }
  file_->publish(target);
  file_.reset();
  progress_.finished.push_back({target.filename().string(), progress_.tokens, progress_.documents,
                                to_hex(hash_.digest()), to_hex(sample.digest())});
  progress_.tokens = progress_.documents = 0;
  progress_.checksum.clear();
}

std::vector<ShardEntry> ShardWriter::finish() {
  if (file_) publish();
  return progress_.finished;
}

}  // namespace essh
