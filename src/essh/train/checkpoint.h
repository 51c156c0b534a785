#pragma once
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "essh/config/field.h"
#include "essh/model/config.h"
#include "essh/model/tensors.h"

namespace essh {

// The numbers of a snapshot, in trainer.json.
struct SnapshotHeader {
  std::string stage;                // "pretraining" or "refinement"
  std::string algorithm = "adamw";  // of the optimizer
  Index step = 0;                   // optimizer steps done
  Index position = 0;               // samples taken from the data
  double tokens = 0;                // tokens seen
  double validation = 0;            // last validation loss of the full capacity; 0 before the first
  std::vector<double> sampler;      // CapacitySampler::state()
  std::string data;                 // fingerprint of the dataset
  std::string recipe;               // YAML
  std::string run = {};             // RunIdentity::id; empty in older checkpoints
  std::string layout = {};          // hash of the order of the tensors, where a file holds flat arrays
};

template <class Visitor>
void fields(Visitor& visit, SnapshotHeader& h) {
  visit("stage", h.stage, Field{.required = true});
  visit("algorithm", h.algorithm, Field{});
  visit("step", h.step, Field{.min = 0, .required = true});
  visit("position", h.position, Field{.min = 0, .required = true});
  visit("tokens", h.tokens, Field{.min = 0, .required = true});
  visit("validation", h.validation, Field{.required = true});
  visit("sampler", h.sampler, Field{});
  visit("data", h.data, Field{.required = true});
  visit("recipe", h.recipe, Field{.required = true});
  visit("run", h.run, Field{});
  visit("layout", h.layout, Field{});
}

// A copy of everything that resuming a run needs.
struct Snapshot : SnapshotHeader {
  ModelConfig config = {};
  std::vector<float> weights = {};                        // in the layout of the config
  std::map<std::string, std::vector<float>> states = {};  // of the optimizer by name, in the same layout
  std::vector<double> squares = {};                       // running squared activations, layers x units

  // Of the arrays.
  std::size_t bytes() const {
    return weights.size() * (1 + states.size()) * sizeof(float) + squares.size() * sizeof(double);
  }
};

// The checkpoints of a run: folders step-00000040, written atomically. Their state.safetensors holds "weights/NAME" and
// "STATE/NAME" for every tensor of the model, and "squares"; older checkpoints hold flat arrays "weights" and "STATE"
// of AdamW.
class Checkpoints {
 public:
  explicit Checkpoints(std::filesystem::path folder, Index keep);
  ~Checkpoints();

  // The newest intact checkpoint. Damaged ones are renamed to damaged-NAME with a warning.
  std::optional<Snapshot> newest();

  // Waits for the previous save, then writes in the background. A failure is thrown by the next call of save() or
  // finish(); the last good checkpoint stays. Older checkpoints are removed only after this one is durable: `keep`
  // intact ones and the best by validation stay.
  void save(Snapshot snapshot);
  void finish();

 private:
  void write(const Snapshot& snapshot) const;
  void prune();
  // Whether the files of a checkpoint have their hashes; checked once per process.
  bool is_whole(Index step);
  void set_aside(Index step, const char* why) const;

  std::filesystem::path folder_;
  Index keep_;
  std::set<Index> whole_;  // steps verified or written by this process
  std::future<void> writing_;
};

Snapshot read_checkpoint(const std::filesystem::path& folder);
SnapshotHeader read_checkpoint_header(const std::filesystem::path& folder);
// The steps of the checkpoints in a folder, rising, and the folder of one step.
std::vector<Index> checkpoint_steps(const std::filesystem::path& folder);
std::filesystem::path checkpoint_folder(const std::filesystem::path& folder, Index step);
// Whether the folder has damaged checkpoints that were set aside.
bool has_damaged_checkpoints(const std::filesystem::path& folder);

}  // namespace essh
