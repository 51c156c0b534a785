#pragma once
#include <memory>
#include <optional>

#include "essh/data/dataset.h"
#include "essh/data/synthetic_task.h"
#include "essh/train/recipe.h"

namespace essh {

// What a recipe trains on: a prepared dataset, or a task that is generated as it is read.
class TrainingData {
 public:
  explicit TrainingData(const DataRecipe& recipe);

  Index vocab_size() const { return task_ ? task_->vocab_size() : dataset_->vocab_size(); }
  Index eos_id() const { return task_ ? 0 : dataset_->eos_id(); }
  // A checkpoint keeps it, and going on with other data is noticed.
  std::string fingerprint() const { return task_ ? task_->fingerprint() : dataset_->fingerprint(); }
  // Sequences to learn from, in the order of a seed. This object outlives them.
  std::unique_ptr<Sequences> training(std::uint64_t seed) const;
  // Sequences held out, always the same. The first validation_count() of them differ from each other.
  std::unique_ptr<Sequences> validation() const;
  Index validation_count() const;
  // Bytes of mapped files that a run over so many sequences brings into memory, and the same by reading on: it touches
  // the data from its beginning, all of it or a part large enough to count, and returns how much.
  double mapped_bytes(Index sequences) const;
  double read_ahead() const;

 private:
  DataRecipe recipe_;
  std::optional<Dataset> dataset_;
  std::optional<SyntheticTask> task_;
};

// The task that a recipe names.
TaskOptions task_options(const DataRecipe& recipe);

}  // namespace essh
