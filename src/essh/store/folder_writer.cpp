#include "essh/store/folder_writer.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <vector>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/log.h"
#include "essh/store/manifest.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Absolute and without a trailing slash; links are followed, so that the folder they name is replaced and not the link.
fs::path resolved(const fs::path& target) {
  std::error_code failed;
  fs::path path = fs::weakly_canonical(fs::absolute(target), failed);
  if (failed) fail(ErrorKind::Usage, "{}: not a usable folder name: {}", target.string(), failed.message());
  return path.has_filename() ? path : path.parent_path();
}

fs::path sibling(const fs::path& path, std::string_view kind) {
  fs::path name = path;
  name += fmt::format(".{}-{}", kind, ::getpid());
  return name;
}

constexpr std::string_view kTemporary = "tmp";

}  // namespace

void remove_leftovers(const fs::path& parent) {
  std::vector<fs::path> leftovers;
  std::error_code failed;
  for (fs::directory_iterator entry(parent, failed), end; !failed && entry != end; entry.increment(failed)) {
    const auto name = entry->path().filename().string();
    const auto mark = name.rfind(fmt::format(".{}-", kTemporary));
    if (mark == std::string::npos || !entry->is_directory(failed)) continue;
    pid_t process = 0;
    const char *number = name.data() + mark + kTemporary.size() + 2, *last = name.data() + name.size();
    const auto [rest, status] = std::from_chars(number, last, process);
    if (status != std::errc{} || rest != last || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) leftovers.push_back(entry->path());
  }
  for (const auto& path : leftovers) {
    fs::remove_all(path, failed);
    if (!failed) log::info("removed {}, left behind by a crash", path.string());
  }
}

FolderWriter::FolderWriter(const fs::path& target, ExistingFolder existing)
    : target_(resolved(target)), existing_(existing) {
  must_replace();
  make_folder(target_.parent_path());
  const fs::path temporary = sibling(target_, kTemporary);
  std::error_code failed;
  fs::remove_all(temporary, failed);
  if (!fs::create_directory(temporary, failed)) {
    fail(ErrorKind::BadFile, "{}: cannot create the folder: {}", temporary.string(), failed.message());
  }
  temporary_ = temporary;
}

FolderWriter::~FolderWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

bool FolderWriter::must_replace() const {
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(target_, failed))) return false;
  const bool empty = fs::is_directory(target_, failed) && fs::is_empty(target_, failed);
  if (failed) fail(ErrorKind::BadFile, "{}: cannot look into it: {}", target_.string(), failed.message());
  if (empty) return false;
  if (existing_ == ExistingFolder::Refuse) {
    fail(ErrorKind::Usage, "{}: exists already; choose another name or ask for it to be overwritten", target_.string());
  }
  if (!fs::exists(target_ / kManifestName, failed)) {
    fail(ErrorKind::Usage,
         "{}: exists and was not written by essh (it has no {}); remove it yourself or choose another name",
         target_.string(), kManifestName);
  }
  return true;
}

void FolderWriter::sync_contents() const try {
  for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
    if (entry.is_directory()) {
      sync_folder(entry.path());
    } else {
      sync_file(entry.path());
    }
  }
} catch (const fs::filesystem_error& error) {
  fail(ErrorKind::BadFile, "{}: cannot list the folder: {}", temporary_.string(), error.code().message());
}

void FolderWriter::commit() {
  sync_contents();
  write_manifest(temporary_);
  fs::path old;
  if (!must_replace()) {
    rename_path(temporary_, target_);
  } else if (exchange_paths(temporary_, target_)) {
    old = temporary_;
  } else {
    old = sibling(target_, "old");
    rename_path(target_, old);
    try {
      rename_path(temporary_, target_);
    } catch (const Error&) {
      rename_path(old, target_);
      throw;
    }
  }
  temporary_.clear();
  // The old folder goes only when the new one is sure to survive a crash.
  try {
    sync_folder(target_.parent_path());
  } catch (const Error&) {
    if (!old.empty()) log::warn("{}: the replaced folder is kept here", old.string());
    throw;
  }
  std::error_code failed;
  if (!old.empty()) fs::remove_all(old, failed);
  if (failed) log::warn("{}: the replaced folder could not be removed: {}", old.string(), failed.message());
}

}  // namespace essh
