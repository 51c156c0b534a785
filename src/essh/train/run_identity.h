#pragma once
#include <filesystem>
#include <string>

#include "essh/train/checkpoint.h"
#include "essh/train/recipe.h"

namespace essh {

// Identity of a run. RUN/run.json keeps `id` and `data`; every checkpoint names `id`.
struct RunIdentity {
  std::string id;    // random, made when the run starts
  std::string data;  // fingerprint of the data that the run was started on
  Recipe recipe;     // paths absolute
};

// Makes the paths of a recipe absolute, without dots and trailing slashes.
Recipe with_absolute_paths(Recipe recipe);

// Starts a run in the folder, or checks that recipe and data are those of the existing run; a difference is an error.
// With `extend`, fields allowed by may_change_in_a_run() take their new values. If the data has moved, the new path is
// recorded.
RunIdentity settle_run(const std::filesystem::path& run, const Recipe& recipe, const std::string& data,
                       bool extend = false);

// The same for the refinement of a run. `chosen`: the caller has named the data, which may then differ.
enum class RefinementData { OfTheRun, Chosen };
RunIdentity settle_refinement(const std::filesystem::path& run, const Recipe& recipe, const std::string& data,
                              RefinementData choice);

// Refuses a checkpoint of another run or another recipe, naming the difference; fields that may change in a run are
// ignored. A checkpoint without a run id is judged by its recipe alone.
void require_same_run(const Snapshot& snapshot, const RunIdentity& identity, const std::filesystem::path& checkpoints);

// Renames the results of a run so that it can start over: metrics.jsonl becomes metrics.jsonl.1, and so on, with the
// first number that is free for all files.
void set_aside_run(const std::filesystem::path& run, bool refinement_only);

}  // namespace essh
