#include "essh/train/training_data.h"

#include <algorithm>
#include <limits>
#include <vector>

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
    fail(ErrorKind::Usage,
         "{}: the validation split has {} tokens, too few for one sequence of {} + 1; prepare it with a larger valid "
         "fraction or more text, or set data.context lower",
         recipe.path, dataset_->valid().tokens(), recipe.context);
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

double TrainingData::mapped_bytes(Index sequences) const {
  if (task_) return 0;
  // A page that is touched brings its neighbours along when they are in the page cache.
  constexpr double kNeighbourhood = 64 << 10;
  const double token = dataset_->token_bytes(), window = static_cast<double>(recipe_.context) * token + kNeighbourhood;
  return std::min(static_cast<double>(dataset_->train().tokens()) * token, static_cast<double>(sequences) * window) +
         static_cast<double>(dataset_->valid().tokens()) * token;
}

double TrainingData::read_ahead() const {
  if (task_) return 0;
  constexpr std::int64_t kTokens = 16 << 20, kPiece = 1 << 16;
  std::vector<std::int32_t> piece;
  double bytes = 0;
  for (const auto* split : {&dataset_->train(), &dataset_->valid()}) {
    const auto tokens = std::min(split->tokens(), kTokens);
    for (std::int64_t first = 0; first < tokens; first += kPiece) {
      piece.resize(static_cast<std::size_t>(std::min(kPiece, tokens - first)));
      split->read(first, piece);
    }
    bytes += static_cast<double>(tokens) * dataset_->token_bytes();
  }
  return bytes;
}

}  // namespace essh
