#pragma once
#include <memory>
#include <optional>

#include "essh/data/dataset.h"
#include "essh/data/synthetic_task.h"
#include "essh/train/recipe.h"

namespace essh {

// The data of a recipe: a prepared dataset, or a generated task.
class TrainingData {
 public:
  explicit TrainingData(const DataRecipe& recipe);

  Index vocab_size() const { return task_ ? task_->vocab_size() : dataset_->vocab_size(); }
  Index eos_id() const { return task_ ? 0 : dataset_->eos_id(); }
  // Kept in checkpoints; resuming with other data is an error.
  std::string fingerprint() const { return task_ ? task_->fingerprint() : dataset_->fingerprint(); }
  // Training sequences in the order of a seed. This object must outlive them.
  std::unique_ptr<Sequences> training(std::uint64_t seed) const;
  // Validation sequences, always the same. The first validation_count() are distinct.
  std::unique_ptr<Sequences> validation() const;
  Index validation_count() const;
  // Bytes of mapped files that reading this many sequences brings into memory. read_ahead() touches the data
  // from its beginning, up to a limit, and returns the bytes touched.
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
