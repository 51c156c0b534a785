#pragma once
#include <filesystem>
#include <string>

#include "essh/device/stream.h"
#include "essh/train/capacity_sampler.h"

namespace essh {

struct RunOptions {
  // Stop after this many steps of this call, as if interrupted; 0: no limit.
  Index stop_after = 0;
  // Start over at step 0. Existing results are renamed.
  bool restart = false;
  // Resume with a recipe that differs in fields allowed by may_change_in_a_run().
  bool extend = false;
};

// Pretrains into a run folder (store/run_folder.h), or resumes the run. If all checkpoints are damaged or gone,
// restarting must be requested. A checkpoint that cannot be written is a warning; for the last checkpoint it is an
// error at the end. SIGTERM and SIGINT save a checkpoint and throw Error{Interrupted}; a second signal ends the process
// at once.
//
// Under mpirun all ranks train one model, each on its own stream; only rank 0 writes and throws Interrupted. Returns
// the folder of the trained model on rank 0, an empty path on other ranks.
std::filesystem::path run_training(const Recipe& recipe, const std::filesystem::path& run, Stream& stream,
                                   const RunOptions& options = {});

// Shared refinement of a run's pretrained/ into refined/, with its recipe and further settings. Resumes like
// run_training(), with the same return value.
std::filesystem::path run_refinement(const std::filesystem::path& run, const std::vector<std::string>& settings,
                                     Stream& stream, const RunOptions& options = {});

// Cost estimate of a run from a few steps: parameters, memory by kind, FLOPs per token, expected time. On the CPU the
// total is the peak memory of the process, including the checkpoint copy, mapped data pages (which the system may drop)
// and the program itself. On a GPU it is the peak device memory.
struct RunEstimate {
  Index parameters = 0;
  double weights_bytes = 0, gradient_bytes = 0, moment_bytes = 0, activation_bytes = 0;
  double checkpoint_bytes = 0, data_bytes = 0, other_bytes = 0, total_bytes = 0;
  double flops_per_token = 0, tokens = 0, seconds = 0, peak_flops = 0;
  std::optional<ReducedShares> reduced;  // of the whole run
};
RunEstimate estimate_run(const Recipe& recipe, Stream& stream);

}  // namespace essh
