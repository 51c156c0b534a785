#include "essh/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "essh/base/error.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

std::atomic<std::uint64_t> io_calls{0};
std::atomic<std::uint64_t> failing_call{0};
std::atomic<bool> exchange_forbidden{false};

bool injected_failure() {
  const auto call = ++io_calls;
  if (call != failing_call.load()) return false;
  errno = ENOSPC;
  return true;
}

std::string reason() {
  return std::strerror(errno);
}

int open_or_fail(const fs::path& path, int flags, const char* purpose) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(ErrorKind::BadFile, "{}: cannot open for {}: {}", path.string(), purpose, reason());
  return descriptor;
}

std::uint64_t regular_size(int descriptor, const fs::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    fail(ErrorKind::BadFile, "{}: {}", path.string(),
         S_ISDIR(status.st_mode) ? "is a folder, not a file" : "not a regular file; copy its contents into one");
  }
  return static_cast<std::uint64_t>(status.st_size);
}

std::string write_remedy() {
  return errno == EFBIG ? "raise the limit on the size of files (ulimit -f)" : "free some space and try again";
}

// Resolves symbolic links; the target need not exist.
fs::path followed(fs::path path) {
  constexpr int kMostLinks = 40;  // the kernel's limit
  std::error_code failed;
  for (int i = 0; i < kMostLinks; ++i) {
    if (!fs::is_symlink(fs::symlink_status(path, failed))) return path;
    const auto to = fs::read_symlink(path, failed);
    if (failed) fail(ErrorKind::BadFile, "{}: cannot follow the link: {}", path.string(), failed.message());
    path = to.is_absolute() ? to : path.parent_path() / to;
  }
  fail(ErrorKind::BadFile, "{}: too many links", path.string());
}

// N if the path names a descriptor of this process, such as /dev/stdout or /dev/fd/3; else -1. Writing continues at the
// descriptor's position, like a shell's redirection.
int own_descriptor(const fs::path& path) {
  std::error_code failed;
  const auto own = fs::canonical("/proc/self/fd", failed);
  if (failed) return -1;
  auto at = path;
  for (int i = 0; i < 8 && fs::is_symlink(fs::symlink_status(at, failed)); ++i) {
    const auto folder = fs::canonical(at.has_parent_path() ? at.parent_path() : fs::path("."), failed);
    if (failed) return -1;
    int number = -1;
    const auto name = at.filename().string();
    const auto [rest, status] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (folder == own && status == std::errc{} && rest == name.data() + name.size()) return number;
    const auto to = fs::read_symlink(at, failed);
    if (failed) return -1;
    at = to.is_absolute() ? to : folder / to;
  }
  return -1;
}

}  // namespace

// O_NONBLOCK: opening a pipe must not block before the pipe is refused.
InputFile::InputFile(const fs::path& path)
    : path_(path), descriptor_(open_or_fail(path, O_RDONLY | O_NONBLOCK, "reading")) {
  size_ = regular_size(descriptor_, path_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto got = ::pread(descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorKind::BadFile, "{}: read failed at byte {}: {}", path_.string(), offset + done, reason());
    if (got == 0)
      fail(ErrorKind::BadFile, "{}: file ends at byte {}, expected {} more", path_.string(), offset + done,
           out.size() - done);
    done += static_cast<std::size_t>(got);
  }
}

DurableFile::DurableFile(const fs::path& target) : name_(target.string()) {
  struct stat status {};
  const bool exists = ::stat(target.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail(ErrorKind::Usage, "{}: is a folder; give the name of a file", name_);
  if (const int own = own_descriptor(target); own >= 0) {
    descriptor_ = ::fcntl(own, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0) fail(ErrorKind::BadFile, "{}: cannot open for writing: {}", name_, reason());
    return;
  }
  if (exists && !S_ISREG(status.st_mode)) {
    descriptor_ = open_or_fail(target, O_WRONLY, "writing");
    return;
  }
  place_ = followed(target);
  // A rename would also replace a write-protected file.
  if (exists && ::access(place_->c_str(), W_OK) != 0)
    fail(ErrorKind::BadFile, "{}: cannot open for writing: {}", name_, reason());
  temporary_.emplace(*place_);
  descriptor_ = ::open(temporary_->path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    fail(ErrorKind::BadFile, "{}: cannot write into its folder: {}", name_, reason());
  }
  mark_in_use(descriptor_);
  if (exists) {
    // Best effort: this user may lack the permission.
    if (::fchown(descriptor_, status.st_uid, status.st_gid) != 0) errno = 0;
    if (::fchmod(descriptor_, status.st_mode & 07777) != 0) errno = 0;
  }
}

DurableFile::~DurableFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void DurableFile::write(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto put = injected_failure() ? -1 : ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      fail(ErrorKind::BadFile, "{}: write failed: {}; {}{}", name_, reason(), write_remedy(),
           place_ ? ", nothing was replaced" : "");
    }
    done += static_cast<std::size_t>(put);
  }
  written_ += bytes.size();
}

void DurableFile::commit() {
  if (injected_failure() || (::fsync(descriptor_) != 0 && (place_ || (errno != EINVAL && errno != EROFS))))
    fail(ErrorKind::BadFile, "{}: fsync failed: {}", name_, reason());
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail(ErrorKind::BadFile, "{}: close failed: {}", name_, reason());
  if (!place_) return;
  if (injected_failure() || ::rename(temporary_->path().c_str(), place_->c_str()) != 0) {
    fail(ErrorKind::BadFile, "{}: rename failed: {}", name_, reason());
  }
  temporary_->release();
  sync_folder(place_->parent_path());
}

AppendFile::AppendFile(const fs::path& path, std::uint64_t keep)
    : path_(path), descriptor_(open_or_fail(path, O_RDWR | O_CREAT | O_NONBLOCK, "writing")), size_(keep) {
  const auto found = regular_size(descriptor_, path_);
  if (found >= keep && ::ftruncate(descriptor_, static_cast<off_t>(keep)) == 0) return;
  const std::string why = found < keep ? fmt::format("{} bytes, expected at least {}", found, keep) : reason();
  ::close(descriptor_);
  fail(ErrorKind::BadFile, "{}: cannot continue this file: {}", path_.string(), why);
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendFile::append(std::span<const std::byte> bytes) {
  const auto offset = size_;
  size_ += bytes.size();
  overwrite(offset, bytes);
}

void AppendFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  ESSH_ASSERT(offset + bytes.size() <= size_);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto put = injected_failure() ? -1
                                        : ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                                   static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(ErrorKind::BadFile, "{}: write failed: {}; {}", path_.string(), reason(), write_remedy());
    done += static_cast<std::size_t>(put);
  }
}

void AppendFile::sync() {
  if (injected_failure() || ::fsync(descriptor_) != 0) {
    fail(ErrorKind::BadFile, "{}: fsync failed: {}", path_.string(), reason());
  }
}

void AppendFile::publish(const fs::path& target) {
  sync();
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail(ErrorKind::BadFile, "{}: close failed: {}", path_.string(), reason());
  if (injected_failure() || ::rename(path_.c_str(), target.c_str()) != 0) {
    fail(ErrorKind::BadFile, "{}: rename failed: {}", target.string(), reason());
  }
  sync_folder(target.parent_path());
}

void write_durably(const fs::path& target, std::string_view text) {
  DurableFile file(target);
  file.write(text);
  file.commit();
}

std::string read_text(const fs::path& path, std::uint64_t limit) {
  InputFile file(path);
  if (file.size() > limit)
    fail(ErrorKind::BadFile, "{}: {} bytes, larger than the limit of {}", path.string(), file.size(), limit);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void sync_folder(const fs::path& folder) {
  const fs::path place = folder.empty() ? fs::path(".") : folder;
  const int descriptor = open_or_fail(place, O_RDONLY | O_DIRECTORY, "syncing");
  const bool ok = !injected_failure() && ::fsync(descriptor) == 0;
  const std::string why = ok ? "" : reason();
  ::close(descriptor);
  if (!ok) fail(ErrorKind::BadFile, "{}: fsync of the folder failed: {}", place.string(), why);
}

void sync_file(const fs::path& path) {
  const int descriptor = open_or_fail(path, O_RDONLY, "syncing");
  const bool ok = !injected_failure() && ::fsync(descriptor) == 0;
  const std::string why = ok ? "" : reason();
  ::close(descriptor);
  if (!ok) fail(ErrorKind::BadFile, "{}: fsync failed: {}", path.string(), why);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (injected_failure() || ::rename(from.c_str(), to.c_str()) != 0) {
    fail(ErrorKind::BadFile, "{}: cannot be renamed to {}: {}", from.string(), to.string(), reason());
  }
}

bool exchange_paths(const fs::path& a, const fs::path& b) {
  if (exchange_forbidden.load() || injected_failure()) return false;
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

void make_folder(const fs::path& folder) {
  std::error_code status;
  fs::create_directories(folder, status);
  if (!fs::is_directory(folder)) {
    fail(ErrorKind::BadFile, "{}: cannot create the folder: {}", folder.string(),
         status ? status.message() : "a file of that name exists");
  }
}

FileLock::FileLock(const fs::path& path) {
  descriptor_ = open_or_fail(path, O_RDWR | O_CREAT | O_NOFOLLOW, "locking");
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    char holder[320] = {};
    const auto got = ::pread(descriptor_, holder, sizeof holder - 1, 0);
    ::close(descriptor_);
    fail(ErrorKind::Usage, "{}: in use by another process{}; wait for it or use another folder", path.string(),
         got > 0 ? fmt::format(" ({})", holder) : "");
  }
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const auto text = fmt::format("pid {} on {}", ::getpid(), host);
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text.data(), text.size(), 0) < 0) {
    ::close(descriptor_);
    fail(ErrorKind::BadFile, "{}: cannot write the lock: {}", path.string(), reason());
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

namespace testing {
std::uint64_t fail_io_call(std::uint64_t k) {
  const auto calls = io_calls.exchange(0);
  failing_call = k;
  return calls;
}

void forbid_exchange(bool forbidden) {
  exchange_forbidden = forbidden;
}
}  // namespace testing

}  // namespace essh
