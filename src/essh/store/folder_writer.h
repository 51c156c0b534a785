#pragma once
#include <filesystem>

#include "essh/base/temporary.h"

namespace essh {

enum class ExistingFolder { Refuse, Replace };

// Writes a folder atomically: files go into folder(), a sibling NAME.tmp-PID, and commit() syncs them, adds SHA256SUMS
// and renames. Without commit() the sibling is removed; leftovers of a crash are removed by the next write to the same
// target.
//
// An existing target is refused, unless it is empty, or `existing` is Replace and its SHA256SUMS lists every file in
// it: foreign files are never removed. The target is exchanged atomically with the new folder. If the file system
// cannot exchange, the target is first renamed to NAME.old-PID; a crash in between leaves both folders and no target.
class FolderWriter {
 public:
  explicit FolderWriter(const std::filesystem::path& target, ExistingFolder existing = ExistingFolder::Refuse);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  const std::filesystem::path& folder() const { return temporary_.path(); }
  void commit();

 private:
  // Whether there is a non-empty target that may be replaced; a target that may not is an error.
  bool must_replace() const;
  void sync_contents() const;

  std::filesystem::path target_;
  ExistingFolder existing_;
  TemporaryPath temporary_;
  int descriptor_ = -1;  // marks the temporary folder as in use
};

// Refuses a target that is `source`, contains it or is inside it.
void refuse_overlap(const std::filesystem::path& source, const std::filesystem::path& target);

}  // namespace essh
