#pragma once
#include <filesystem>

#include "essh/base/temporary.h"

namespace essh {

enum class ExistingFolder { Refuse, Replace };

// Writes a folder that appears whole or not at all: files are written into folder(), a sibling NAME.tmp-PID, and
// commit() syncs them, adds SHA256SUMS and renames. Without commit() the sibling is removed; leftovers of a crash are
// removed by the next write to the same target.
//
// An existing target is refused, unless it is empty, or `existing` is Replace and its SHA256SUMS lists every file in
// it: no file that this class has not written is removed. It is exchanged with the new one in a single step; where the
// file system cannot, it is first moved aside to NAME.old-PID, so that a crash in between leaves no target but both
// folders.
class FolderWriter {
 public:
  explicit FolderWriter(const std::filesystem::path& target, ExistingFolder existing = ExistingFolder::Refuse);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  const std::filesystem::path& folder() const { return temporary_.path(); }
  void commit();

 private:
  // Whether a non-empty target stands there that may be replaced; one that may not is an error.
  bool must_replace() const;
  void sync_contents() const;

  std::filesystem::path target_;
  ExistingFolder existing_;
  TemporaryPath temporary_;
  int descriptor_ = -1;  // marks the temporary folder as in use
};

// Refuses a target that is `source`, contains it or lies inside it: writing there would destroy what is read.
void refuse_overlap(const std::filesystem::path& source, const std::filesystem::path& target);

}  // namespace essh
