#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "essh/base/file.h"
#include "essh/data/dataset_manifest.h"
#include "essh/data/document_block.h"
#include "essh/data/shard_writer.h"

namespace essh {

// Progress of a preparation, between two documents.
struct PrepareState {
  struct Split {
    ShardProgress shards;
    std::int64_t documents = 0;
    std::int64_t bytes = 0;
  };

  std::size_t source = 0;  // among those of this part
  SourcePosition position;
  std::uint64_t consumed = 0;  // bytes of the source file, for the progress line
  Split train;
  Split valid;
  std::int64_t bad_lines = 0;
  std::vector<std::string> first_bad_lines;
  std::vector<std::string> first_records, held_out;  // names found, if some are held out
};

// Plan and progress files next to the shards, from which a killed preparation resumes. They are deleted once the
// manifest is written. One process at a time holds the journal.
class PrepareJournal {
 public:
  PrepareJournal(const std::filesystem::path& folder, const DatasetPlan& plan);

  // The last saved state of the same plan, if any. A state of another plan is an error.
  std::optional<PrepareState> resume();
  void keep(const PrepareState& state);
  void remove();

 private:
  std::filesystem::path folder_;
  const DatasetPlan& plan_;
  std::string suffix_;
  std::filesystem::path plan_path_;
  std::filesystem::path state_path_;
  std::filesystem::path lock_path_;
  FileLock lock_;
};

}  // namespace essh
