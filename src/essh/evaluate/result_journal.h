#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "essh/base/file.h"
#include "essh/base/json.h"

namespace essh {

// A file of finished measurements, one JSON object a line, that lets a long evaluation go on where it was stopped. A
// key names everything that a result depends on; lines of other keys are kept and not looked at. One process at a time
// holds it.
class ResultJournal {
 public:
  // Opens or creates the file; a last line that a crash cut off is removed. An empty path keeps nothing.
  explicit ResultJournal(const std::filesystem::path& path);

  // Null where there is none.
  const Json* find(const std::string& key) const;
  // Returns when the result is on the disk.
  void add(const std::string& key, const Json& result);

 private:
  std::optional<FileLock> lock_;
  std::optional<AppendFile> file_;
  std::map<std::string, Json> results_;
};

}  // namespace essh
