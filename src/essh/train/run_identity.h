#pragma once
#include <filesystem>
#include <string>

#include "essh/train/checkpoint.h"
#include "essh/train/recipe.h"

namespace essh {

// What makes the contents of a run folder one run. RUN/run.json keeps `id` and `data`; every checkpoint names `id`.
struct RunIdentity {
  std::string id;    // random, made when the run starts
  std::string data;  // fingerprint of the data that the run was started on
  Recipe recipe;     // paths absolute
};

// Paths of a recipe do not depend on where a command is called: absolute, without dots and trailing slashes.
Recipe with_absolute_paths(Recipe recipe);

// Starts a run in the folder, or makes sure that recipe and data are those of the run that is there: another recipe or
// other data is an error. With `extend`, fields that may_change_in_a_run() take their new values. Data that has moved
// is found at its new place from then on.
RunIdentity settle_run(const std::filesystem::path& run, const Recipe& recipe, const std::string& data,
                       bool extend = false);

// The same for the refinement of a run. `chosen`: the caller has named the data, which then may be other data.
enum class RefinementData { OfTheRun, Chosen };
RunIdentity settle_refinement(const std::filesystem::path& run, const Recipe& recipe, const std::string& data,
                              RefinementData choice);

// A checkpoint of another run or another recipe is an error that names the difference, in fields that the settled
// recipe cannot have changed since. A checkpoint from before there were names of runs is judged by its recipe alone.
void require_same_run(const Snapshot& snapshot, const RunIdentity& identity, const std::filesystem::path& checkpoints);

// Moves what a run has produced out of the way, so that it can start over: metrics.jsonl becomes metrics.jsonl.1 and so
// on, by the first number that is free for all.
void set_aside_run(const std::filesystem::path& run, bool refinement_only);

}  // namespace essh
