#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

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
  // Says how many results of the measurement are kept. `prefix` is what its keys have in common, up to a space.
  void announce(const std::string& prefix) const;

 private:
  std::filesystem::path path_;
  std::optional<FileLock> lock_;
  std::optional<AppendFile> file_;
  std::map<std::string, Json> results_;
};

// The `size` numbers of a result: from the journal, or measured and added to it, unless one is not finite. Without a
// journal, measured.
std::vector<double> kept_or_measured(ResultJournal* journal, const std::string& key, std::size_t size,
                                     const std::function<std::vector<double>()>& measure);

}  // namespace essh
