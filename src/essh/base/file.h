#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "essh/base/temporary.h"

namespace essh {

// A regular file opened for positional reads. Other kinds of files are refused; opening a pipe does not block. A file
// that shrinks while it is read is an error.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  InputFile& operator=(InputFile&&) = delete;

  std::uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // Fills `out` from `offset`; a short read is an error that names the file.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  int descriptor() const { return descriptor_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// Writes a file atomically: a temporary next to the target, fsync, rename, fsync of the folder. Without commit() the
// temporary is removed. Symbolic links are followed, and a replaced file keeps its mode. Targets that are not regular
// files (devices, pipes, /dev/stdout) are written to directly.
class DurableFile {
 public:
  explicit DurableFile(const std::filesystem::path& target);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  std::uint64_t written() const { return written_; }
  void commit();
  // The final path, symbolic links resolved; empty if the target is written to directly.
  const std::optional<std::filesystem::path>& place() const { return place_; }

 private:
  std::string name_;  // as shown in messages
  std::optional<std::filesystem::path> place_;
  std::optional<TemporaryPath> temporary_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
};

// A file that grows over several processes: synced at checkpoints, truncated to the last checkpoint after a crash,
// renamed when complete. The destructor leaves it on disk.
class AppendFile {
 public:
  // Opens or creates `path` and keeps its first `keep` bytes; a file shorter than that is an error.
  AppendFile(const std::filesystem::path& path, std::uint64_t keep);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  std::uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  void append(std::span<const std::byte> bytes);
  // Overwrites bytes that were appended earlier.
  void overwrite(std::uint64_t offset, std::span<const std::byte> bytes);
  void sync();
  // Syncs and renames to `target`, durably; nothing may be written afterwards.
  void publish(const std::filesystem::path& target);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

void write_durably(const std::filesystem::path& target, std::string_view text);
// The contents of a file; an error if it is larger than `limit` bytes.
std::string read_text(const std::filesystem::path& path, std::uint64_t limit);
void sync_folder(const std::filesystem::path& folder);
void sync_file(const std::filesystem::path& path);
// rename(2): replaces `to` atomically. The caller syncs the folder.
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Swaps two paths atomically. Returns false and changes nothing if the file system cannot.
bool exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);
// Creates the folder and its parents; an existing file of that name is an error.
void make_folder(const std::filesystem::path& folder);

// An advisory lock on `path`, held until destruction. Fails at once, naming the holder, if another process holds the
// lock.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

namespace testing {
// The k-th write, fsync or rename from now on (1 = the next) fails as on a full disk; 0 switches the fault off.
// Returns how many such calls have happened since the last call.
std::uint64_t fail_io_call(std::uint64_t k);
// Makes exchange_paths return false, as on a file system without that operation.
void forbid_exchange(bool forbidden);
}  // namespace testing

}  // namespace essh
