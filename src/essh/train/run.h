#pragma once
#include <filesystem>
#include <string>

#include "essh/device/stream.h"
#include "essh/train/capacity_sampler.h"

namespace essh {

struct RunOptions {
  // Stop after this many steps of this call, as if interrupted; 0 goes to the end.
  Index stop_after = 0;
  // Start over at step 0. What the run has produced so far is kept under other names.
  bool restart = false;
  // Go on with a recipe that differs from the run's where may_change_in_a_run() allows it: more steps.
  bool extend = false;
};

// Pretrains into a run folder (store/run_folder.h), or goes on where it stopped. A run whose checkpoints are all
// damaged or gone is refused unless it is to start over. A checkpoint that cannot be written is a warning; that the
// last one could not be written is an error at the end. SIGTERM and SIGINT save a checkpoint and throw
// Error{Interrupted}; a second signal ends at once.
//
// Started by mpirun, the ranks train one model, each on a stream of its own; rank 0 alone writes and throws
// Interrupted. Returns the folder of the trained model; nothing on other ranks.
std::filesystem::path run_training(const Recipe& recipe, const std::filesystem::path& run, Stream& stream,
                                   const RunOptions& options = {});

// Shared refinement of a run's pretrained/ into refined/, with its recipe and further settings. Goes on where it
// stopped. Returns as run_training() does.
std::filesystem::path run_refinement(const std::filesystem::path& run, const std::vector<std::string>& settings,
                                     Stream& stream, const RunOptions& options = {});

// What a run would take: parameters, memory by kind, FLOPs per token, expected time; from a few steps that it makes. On
// the CPU the total is that of the process: besides the kinds, the copy that a checkpoint is written from, the pages of
// the data (which the system may drop), and the program itself. On a GPU it is the device's.
struct RunEstimate {
  Index parameters = 0;
  double weights_bytes = 0, gradient_bytes = 0, moment_bytes = 0, activation_bytes = 0;
  double checkpoint_bytes = 0, data_bytes = 0, other_bytes = 0, total_bytes = 0;
  double flops_per_token = 0, tokens = 0, seconds = 0, peak_flops = 0;
  std::optional<ReducedShares> reduced;  // of the whole run
};
RunEstimate estimate_run(const Recipe& recipe, Stream& stream);

}  // namespace essh
