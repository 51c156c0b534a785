#include "essh/base/temporary.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/log.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMark = ".tmp-";

// Paths for the signal handler, which may neither lock nor allocate. If all slots are taken, a path is not guarded; the
// next writer of its target removes the leftover.
struct Guarded {
  enum State { Free, Claimed, Set };
  std::atomic<int> state{Free};
  char path[PATH_MAX];
};
std::array<Guarded, 32> guarded;
static_assert(std::atomic<int>::is_always_lock_free);

int guard(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  for (std::size_t i = 0; i < guarded.size(); ++i) {
    int expected = Guarded::Free;
    if (!guarded[i].state.compare_exchange_strong(expected, Guarded::Claimed)) continue;
    std::memcpy(guarded[i].path, path.c_str(), path.size() + 1);
    guarded[i].state = Guarded::Set;
    return static_cast<int>(i);
  }
  return -1;
}

// The kernel's directory entry: a signal handler may not call readdir(), which allocates.
struct KernelEntry {
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short size;
  unsigned char type;
  char name[1];
};

// Removes the contents of a folder, three levels deep: ours are nearly flat.
void remove_contents(int folder, int depth) {
  alignas(KernelEntry) char buffer[4096];
  for (long got; (got = ::syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0;) {
    for (long at = 0; at < got;) {
      KernelEntry entry;
      std::memcpy(&entry, buffer + at, offsetof(KernelEntry, name));
      const char* name = buffer + at + offsetof(KernelEntry, name);
      at += entry.size;
      if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0 || ::unlinkat(folder, name, 0) == 0) continue;
      const int inner = depth > 0 ? ::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
      if (inner < 0) continue;
      remove_contents(inner, depth - 1);
      ::close(inner);
      ::unlinkat(folder, name, AT_REMOVEDIR);
    }
  }
}

std::optional<pid_t> process_of(std::string_view name) {
  const auto mark = name.rfind(kMark);
  if (mark == std::string_view::npos || mark == 0) return std::nullopt;
  pid_t process = 0;
  const char *number = name.data() + mark + kMark.size(), *last = name.data() + name.size();
  const auto [rest, status] = std::from_chars(number, last, process);
  if (status != std::errc{} || rest != last || process <= 0) return std::nullopt;
  return process;
}

// kill() cannot see a process on another machine, but its lock is visible.
bool is_in_use(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return errno != ENOENT;
  const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0;
  ::close(descriptor);
  return locked;
}

}  // namespace

TemporaryPath::TemporaryPath(const fs::path& target) : path_(target) {
  remove_leftovers(target.parent_path(), target.filename().string());
  path_ += fmt::format("{}{}", kMark, ::getpid());
  slot_ = guard(path_.string());
}

TemporaryPath::~TemporaryPath() {
  unguard();
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

void TemporaryPath::unguard() {
  if (slot_ >= 0) guarded[static_cast<std::size_t>(slot_)].state = Guarded::Free;
  slot_ = -1;
}

void TemporaryPath::release() {
  unguard();
  path_.clear();
}

bool is_temporary_name(std::string_view name) {
  return process_of(name).has_value();
}

void remove_leftovers(const fs::path& folder, std::string_view target) {
  std::vector<fs::path> leftovers;
  std::error_code failed;
  const auto place = folder.empty() ? fs::path(".") : folder;
  for (fs::directory_iterator entry(place, failed), end; !failed && entry != end; entry.increment(failed)) {
    const auto name = entry->path().filename().string();
    const auto process = process_of(name);
    if (!process || (!target.empty() && name.substr(0, name.rfind(kMark)) != target)) continue;
    if (::kill(*process, 0) != 0 && errno == ESRCH && !is_in_use(entry->path())) leftovers.push_back(entry->path());
  }
  for (const auto& path : leftovers) {
    fs::remove_all(path, failed);
    if (!failed) log::info("removed {}, left behind by a crash", path.string());
  }
}

void mark_in_use(int descriptor) {
  // If the file system has no locks, the process id in the name must do.
  ::flock(descriptor, LOCK_EX | LOCK_NB);
}

void remove_guarded_temporaries() {
  for (auto& entry : guarded) {
    if (entry.state.load() != Guarded::Set || ::unlink(entry.path) == 0) continue;
    const int folder = ::open(entry.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) continue;
    remove_contents(folder, 3);
    ::close(folder);
    ::rmdir(entry.path);
  }
}

}  // namespace essh
