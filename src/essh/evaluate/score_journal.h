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

// A file of finished items, one JSON object a line, that lets an evaluation go on where it was stopped. A key names
// what the scores depend on (model, tier, task, tokenizer, precision): lines of other keys are kept and not looked at,
// so one file may serve many evaluations. One process at a time holds it.
class ScoreJournal {
 public:
  // Opens or creates the file; a last line that a crash cut off is removed.
  explicit ScoreJournal(const std::filesystem::path& path);

  // The likelihoods of an item's requests, where they are there already.
  const std::vector<Likelihood>* find(const std::string& key, std::size_t item) const;
  // `details` stand in the line too, for readers.
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
