#pragma once
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "essh/model/config.h"
#include "essh/model/tensors.h"

namespace essh {

// Everything a run needs to go on as if it had never stopped, copied out of it.
struct Snapshot {
  std::string stage;      // "pretraining" or "refinement"
  std::string algorithm;  // of the optimizer
  ModelConfig config;
  std::vector<float> weights;                        // in the layout of the config
  std::map<std::string, std::vector<float>> states;  // of the optimizer by name, in the same layout
  std::vector<double> squares;                       // running squared activations, layers x units
  std::vector<double> sampler;                       // CapacitySampler::state()
  Index step = 0;                                    // optimizer steps done
  Index position = 0;                                // samples taken from the data
  double tokens = 0;                                 // tokens seen
  double validation = 0;                             // last validation loss of the full capacity; 0 before the first
  std::string data;                                  // fingerprint of the dataset
  std::string recipe;                                // YAML

  // Of the arrays.
  std::size_t bytes() const {
    return weights.size() * (1 + states.size()) * sizeof(float) + squares.size() * sizeof(double);
  }
};

// The checkpoints of a run: folders step-00000040 that appear whole or not at all. trainer.json has the numbers,
// state.safetensors the arrays: "weights/NAME" and "STATE/NAME" for every tensor of the model, and "squares".
class Checkpoints {
 public:
  explicit Checkpoints(std::filesystem::path folder, Index keep);
  ~Checkpoints();

  // The newest that is whole; broken ones are named in a warning and passed over.
  std::optional<Snapshot> newest() const;

  // Writes in the background; waits first for the one before. A failure is thrown by the next call of save() or
  // finish(), and the last good checkpoint stays. Older ones are removed only after this one is safe; the best by
  // validation is kept.
  void save(Snapshot snapshot);
  void finish();

 private:
  void write(const Snapshot& snapshot) const;
  void prune() const;

  std::filesystem::path folder_;
  Index keep_;
  std::future<void> writing_;
};

Snapshot read_checkpoint(const std::filesystem::path& folder);
// Steps of the checkpoints of a folder, rising.
std::vector<Index> checkpoint_steps(const std::filesystem::path& folder);

}  // namespace essh
