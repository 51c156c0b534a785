#include "essh/store/folder_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "essh/base/error.h"
#include "essh/base/file.h"
#include "essh/base/log.h"
#include "essh/base/utf8.h"
#include "essh/store/manifest.h"

namespace essh {
namespace fs = std::filesystem;
namespace {

// Absolute, without a trailing slash, links resolved: replaces the folder and not the link.
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

}  // namespace

void refuse_overlap(const fs::path& source, const fs::path& target) {
  const auto from = resolved(source), to = resolved(target);
  const auto begins_with = [](const fs::path& path, const fs::path& start) {
    return std::mismatch(path.begin(), path.end(), start.begin(), start.end()).second == start.end();
  };
  if (!begins_with(to, from) && !begins_with(from, to)) return;
  fail(ErrorKind::Usage, "{}: {} {}, which is read from; choose another folder", target.string(),
       from == to              ? "is"
       : begins_with(to, from) ? "lies inside"
                               : "contains",
       source.string());
}

FolderWriter::FolderWriter(const fs::path& target, ExistingFolder existing)
    : target_(resolved(target)), existing_(existing), temporary_(target_) {
  must_replace();
  make_folder(target_.parent_path());
  std::error_code failed;
  fs::remove_all(folder(), failed);
  if (!fs::create_directory(folder(), failed)) {
    fail(ErrorKind::BadFile, "{}: cannot create the folder: {}", folder().string(), failed.message());
  }
  descriptor_ = ::open(folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ >= 0) mark_in_use(descriptor_);
}

FolderWriter::~FolderWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool FolderWriter::must_replace() const {
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(target_, failed))) return false;
  const bool empty = fs::is_directory(target_, failed) && fs::is_empty(target_, failed);
  if (failed) fail(ErrorKind::BadFile, "{}: cannot look into it: {}", target_.string(), failed.message());
  if (empty) return false;
  if (fs::is_other(target_, failed)) fail(ErrorKind::Usage, "{}: is no folder; choose another name", target_.string());
  if (existing_ == ExistingFolder::Refuse) {
    fail(ErrorKind::Usage, "{}: exists already; choose another name or ask for it to be overwritten", target_.string());
  }
  if (!fs::exists(target_ / kManifestName, failed)) {
    fail(ErrorKind::Usage,
         "{}: exists and was not written by essh (it has no {}); remove it yourself or choose another name",
         target_.string(), kManifestName);
  }
  if (const auto foreign = unlisted_files(target_); !foreign.empty()) {
    fail(ErrorKind::Usage, "{}: holds files that essh did not write ({}{}); move them away or choose another name",
         target_.string(), in_quotes(foreign.front()),
         foreign.size() > 1 ? fmt::format(" and {} more", foreign.size() - 1) : "");
  }
  return true;
}

void FolderWriter::sync_contents() const try {
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (entry.is_directory()) {
      sync_folder(entry.path());
    } else {
      sync_file(entry.path());
    }
  }
} catch (const fs::filesystem_error& error) {
  fail(ErrorKind::BadFile, "{}: cannot list the folder: {}", folder().string(), error.code().message());
}

void FolderWriter::commit() {
  sync_contents();
  write_manifest(folder());
  const auto written = folder();
  fs::path old;
  if (!must_replace()) {
    rename_path(written, target_);
  } else if (exchange_paths(written, target_)) {
    old = written;
  } else {
    old = sibling(target_, "old");
    // A signal between the two renames must leave both folders in place.
    temporary_.unguard();
    rename_path(target_, old);
    try {
      rename_path(written, target_);
    } catch (const Error&) {
      rename_path(old, target_);
      throw;
    }
  }
  temporary_.release();
  // The old folder is removed only when the new one is durable.
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
