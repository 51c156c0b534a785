#pragma once
#include <filesystem>

namespace essh {

enum class ExistingFolder { Refuse, Replace };

// Writes a folder that appears whole or not at all: files are written into folder(), a sibling NAME.tmp-PID, and
// commit() syncs them, adds SHA256SUMS and renames. Without commit() the sibling is removed; after a crash it is left
// behind.
//
// An existing target is refused, unless it is empty or `existing` is Replace and it holds SHA256SUMS, that is, was
// written by this class. It is exchanged with the new one in a single step; where the file system cannot, it is first
// moved aside to NAME.old-PID, so that a crash in between leaves no target but both folders.
class FolderWriter {
 public:
  explicit FolderWriter(const std::filesystem::path& target, ExistingFolder existing = ExistingFolder::Refuse);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  const std::filesystem::path& folder() const { return temporary_; }
  void commit();

 private:
  // Whether a non-empty target stands there that may be replaced; one that may not is an error.
  bool must_replace() const;
  void sync_contents() const;

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty once there is nothing to remove
  ExistingFolder existing_;
};

// Removes folders NAME.tmp-PID in `parent` that writers left behind which have ended.
void remove_leftovers(const std::filesystem::path& parent);

}  // namespace essh
