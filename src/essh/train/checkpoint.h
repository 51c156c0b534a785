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
  std::string run = {};             // RunIdentity::id; empty in checkpoints from before
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

// Everything a run needs to go on as if it had never stopped, copied out of it.
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

// The checkpoints of a run: folders step-00000040 that appear whole or not at all. Their state.safetensors holds
// "weights/NAME" and "STATE/NAME" for every tensor of the model, and "squares"; older ones flat arrays "weights" and
// "STATE" of AdamW.
class Checkpoints {
 public:
  explicit Checkpoints(std::filesystem::path folder, Index keep);
  ~Checkpoints();

  // The newest that is whole. One that is damaged is renamed to damaged-NAME, with a warning, and counts no more.
  std::optional<Snapshot> newest();

  // Writes in the background; waits first for the one before. A failure is thrown by the next call of save() or
  // finish(), and the last good checkpoint stays. Older ones are removed only after this one is safe: `keep` whole ones
  // and the best by validation stay.
  void save(Snapshot snapshot);
  void finish();

 private:
  void write(const Snapshot& snapshot) const;
  void prune();
  // Whether the files of a checkpoint are what was written; looked at once.
  bool is_whole(Index step);
  void set_aside(Index step, const char* why) const;

  std::filesystem::path folder_;
  Index keep_;
  std::set<Index> whole_;  // steps found or made whole by this process
  std::future<void> writing_;
};

Snapshot read_checkpoint(const std::filesystem::path& folder);
SnapshotHeader read_checkpoint_header(const std::filesystem::path& folder);
// Of the checkpoints in a folder: the steps, rising, and where that of a step stands.
std::vector<Index> checkpoint_steps(const std::filesystem::path& folder);
std::filesystem::path checkpoint_folder(const std::filesystem::path& folder, Index step);
// Whether damaged checkpoints were set aside there.
bool has_damaged_checkpoints(const std::filesystem::path& folder);

}  // namespace essh
