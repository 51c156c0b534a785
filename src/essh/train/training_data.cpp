#include "essh/train/training_data.h"

#include <limits>

#include "essh/kernels/cross_entropy.h"

namespace essh {

static_assert(kUnlabelled == kIgnoredTarget);

TaskOptions task_options(const DataRecipe& recipe) {
  return {.name = recipe.task,
          .length = recipe.context,
          .symbols = recipe.symbols,
          .pairs = recipe.pairs,
          .query_power = recipe.query_power,
          .noise = recipe.noise};
}

TrainingData::TrainingData(const DataRecipe& recipe) : recipe_(recipe) {
  if (!recipe.task.empty()) {
    task_.emplace(task_options(recipe));
    return;
  }
  dataset_.emplace(recipe.path);
  if (dataset_->valid().windows(recipe.context) == 0)
    fail(ErrorKind::Usage, "{}: the validation split has {} tokens, too few for one sequence of {} + 1", recipe.path,
         dataset_->valid().tokens(), recipe.context);
}

std::unique_ptr<Sequences> TrainingData::training(std::uint64_t seed) const {
  if (task_) return std::make_unique<TaskSequences>(*task_, SyntheticTask::Split::Train, seed);
  return std::make_unique<TextSequences>(dataset_->train(), recipe_.context, seed);
}

std::unique_ptr<Sequences> TrainingData::validation() const {
  if (task_) return std::make_unique<TaskSequences>(*task_, SyntheticTask::Split::Validation, 0);
  return std::make_unique<TextSequences>(dataset_->valid(), recipe_.context, std::nullopt);
}

Index TrainingData::validation_count() const {
  return task_ ? std::numeric_limits<Index>::max() : dataset_->valid().windows(recipe_.context);
}

}  // namespace essh
