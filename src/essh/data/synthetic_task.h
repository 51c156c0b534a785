#pragma once
#include <string>

#include "essh/config/field.h"
#include "essh/data/sequences.h"

namespace essh {

// Which task, and its sizes. 0 takes the task's own.
struct TaskOptions {
  std::string name = {};
  std::int64_t length = 256;
  std::int64_t symbols = 0;
  std::int64_t pairs = 64;
  double query_power = 0.01;
  bool noise = true;
};

// Recall tasks that are generated as they are read:
//
// mqar, multi-query associative recall, over ids 0 to symbols - 1 (8192): `pairs` distinct keys from the lower half (0
// is the filler), each followed by its value, distinct ones from the upper half; then the rest of the sequence in slots
// of two positions, of which each key gets one. Slots are drawn one after the other without replacement, slot g with
// weight (g + 1)^(query_power - 1), for the keys in their order. The target of a key in its slot is its value. With
// `noise` every filler becomes an id drawn from all of them.
//
// palindrome, over `symbols` (64) symbols: begin, n of them at random, separator, the same in reverse, n = (length - 1)
// /
// 2. Targets are the n symbols of the second half; begin and separator are the two ids after the symbols.
class SyntheticTask {
 public:
  enum class Split { Train, Validation };

  // Sizes that do not fit each other are refused.
  explicit SyntheticTask(const TaskOptions& options);

  const TaskOptions& options() const { return options_; }
  std::int64_t vocab_size() const;
  std::int64_t labels() const;
  // Accuracy of a guess that knows the task and nothing of the sequence.
  double chance() const;
  // Everything that the sequences of a seed depend on, in words.
  std::string fingerprint() const;
  // Sample `index` of a split; spans of `length`.
  void sample(Split split, std::uint64_t seed, std::int64_t index, std::span<std::int32_t> inputs,
              std::span<std::int32_t> targets) const;

 private:
  TaskOptions options_;
};

// One split of a task as a stream.
class TaskSequences : public Sequences {
 public:
  TaskSequences(SyntheticTask task, SyntheticTask::Split split, std::uint64_t seed)
      : task_(std::move(task)), split_(split), seed_(seed) {}

  std::int64_t length() const override { return task_.options().length; }
  std::int64_t labels() const override { return task_.labels(); }
  void read(std::int64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const override {
    task_.sample(split_, seed_, index, inputs, targets);
  }

 private:
  SyntheticTask task_;
  SyntheticTask::Split split_;
  std::uint64_t seed_;
};

}  // namespace essh
