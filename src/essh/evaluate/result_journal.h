#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "essh/base/file.h"
#include "essh/base/json.h"

namespace essh {

// A file of finished measurements, one JSON object per line, from which an interrupted evaluation resumes. A key names
// everything that a result depends on; lines with other keys are kept and ignored. One process at a time locks the
// file.
class ResultJournal {
 public:
  // Opens or creates the file and removes an incomplete last line. With an empty path nothing is kept.
  explicit ResultJournal(const std::filesystem::path& path);

  // Null if absent.
  const Json* find(const std::string& key) const;
  // Returns when the result is on the disk.
  void add(const std::string& key, const Json& result);

 private:
  std::optional<FileLock> lock_;
  std::optional<AppendFile> file_;
  std::map<std::string, Json> results_;
};

}  // namespace essh
