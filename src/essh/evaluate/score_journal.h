#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "essh/base/file.h"
#include "essh/base/json_fwd.h"
#include "essh/evaluate/likelihood.h"

namespace essh {

// A file of finished items, one JSON object per line, from which an interrupted evaluation resumes. A key names what
// the scores depend on (model, tier, task, tokenizer, precision). Lines with other keys are kept and ignored, so many
// evaluations can use one file. One process at a time locks it.
class ScoreJournal {
 public:
  // Opens or creates the file and removes an incomplete last line.
  explicit ScoreJournal(const std::filesystem::path& path);

  // Likelihoods of an item's requests; null if absent.
  const std::vector<Likelihood>* find(const std::string& key, std::size_t item) const;
  // `details` are added to the line for human readers.
  void add(const std::string& key, std::size_t item, const std::vector<Likelihood>& likelihoods, Json details);
  // Returns when everything added so far is on the disk.
  void sync();

 private:
  std::filesystem::path path_;
  FileLock lock_;
  std::map<std::string, std::map<std::size_t, std::vector<Likelihood>>> items_;
  std::optional<AppendFile> file_;
};

}  // namespace essh
