#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "essh/base/file.h"
#include "essh/base/log.h"
#include "essh/store/manifest.h"
#include "essh/train/capacity_sampler.h"
#include "essh/train/checkpoint.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/tensor_image.h"
#include "tests/model/small_model.h"

namespace essh {
namespace {
namespace fs = std::filesystem;

// A checkpoint with damage in one file, sometimes with a matching manifest. It is refused, or its contents have the
// sizes of the model.
class CheckpointFuzzer {
 public:
  explicit CheckpointFuzzer(std::uint64_t seed)
      : folder_(fuzz::scratch_folder() / fmt::format("essh-fuzz-checkpoint-{}-{}", ::getpid(), seed)),
        mutator_(seed, {"{",
                        "}",
                        "[",
                        "]",
                        ",",
                        ":",
                        "\"",
                        "null",
                        "true",
                        "-1",
                        "0",
                        "1e308",
                        "4096",
                        "16777216",
                        "281474976710656",
                        "9223372036854775807",
                        "\"squares\":",
                        "\"weights\":",
                        "\"first\":",
                        "\"F32\"",
                        "\"F64\"",
                        "\"BF16\"",
                        "\"sampler\":[]",
                        "\"hidden_size\":",
                        "\"layout\":\"\"",
                        "../",
                        "\\u0000",
                        "\xff",
                        std::string(1, '\0')}) {
    log::set_level(log::Level::Quiet);
    fs::remove_all(folder_);
    make_folder(folder_);
    auto config = small_config();
    config.num_hidden_layers = 2;
    Snapshot snapshot{};
    snapshot.stage = "pretraining";
    snapshot.step = 40;
    snapshot.position = 320;
    snapshot.tokens = 5120;
    snapshot.validation = 3.5;
    snapshot.sampler = {0.75, 1, 0.25, 0.5, 0.25, 3.0, 1.0, 2.5};
    snapshot.data = "of the data";
    snapshot.recipe = "elastic: {sampling: adaptive}\nrun: {steps: 1000}\n";
    snapshot.run = "a run";
    snapshot.config = config;
    const auto size = static_cast<std::size_t>(ParameterLayout(config).size());
    snapshot.weights.assign(size, 0.5f);
    snapshot.states["first"].assign(size, 0.25f);
    snapshot.squares.assign(static_cast<std::size_t>(config.num_hidden_layers * config.intermediate_size), 1.0);
    Checkpoints checkpoints(folder_, 2);
    checkpoints.save(snapshot);
    checkpoints.finish();
    checkpoint_ = checkpoint_folder(folder_, 40);
    for (const char* name : {"trainer.json", "config.json", "state.safetensors", "SHA256SUMS"})
      files_.push_back({checkpoint_ / name, read_text(checkpoint_ / name, 1 << 24)});
    tensors_ = fuzz::TensorImage::of(files_[2].second);
  }
  CheckpointFuzzer(CheckpointFuzzer&&) = default;
  ~CheckpointFuzzer() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  void operator()() {
    const auto damaged = mutator_.rng().below(files_.size());
    const auto& [path, good] = files_[damaged];
    auto image = good;
    do {
      if (damaged == 2) {
        auto tensors = fuzz::TensorImage::of(image);
        tensors.mutate(mutator_, tensors_);
        image = tensors.file();
      } else {
        mutator_.mutate_json(image, good);
      }
    } while (mutator_.one_in(4));
    write(path, image);
    const struct Restore {
      const std::pair<fs::path, std::string>&damaged, &manifest;
      ~Restore() {
        for (const auto* file : {&damaged, &manifest}) write(file->first, file->second);
      }
    } restore{files_[damaged], files_.back()};
    if (damaged < 3 && !mutator_.one_in(8)) {
      fs::remove(checkpoint_ / kManifestName);
      write_manifest(checkpoint_);
    }
    const auto snapshot = read_checkpoint(checkpoint_);
    const auto size = static_cast<std::size_t>(ParameterLayout(snapshot.config).size());
    bool fits = snapshot.weights.size() == size;
    for (const auto& [name, values] : snapshot.states) fits = fits && values.size() == size;
    if (!fits) throw std::logic_error("arrays are not of the model's size");
    const auto recipe = parse_recipe(snapshot.recipe, "recipe of the checkpoint", {});
    CapacitySampler sampler(recipe.elastic, snapshot.config, recipe.run.seed, recipe.run.steps);
    sampler.restore(snapshot.sampler);
    for (const double budget : sampler.draw(snapshot.step % 1000, snapshot.tokens, 16)) {
      const auto capacity = capacity_at(snapshot.config, budget);
      if (capacity.ffn < 1 || capacity.ffn > snapshot.config.intermediate_size)
        throw std::logic_error("a capacity outside the model");
    }
  }

 private:
  static void write(const fs::path& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  fs::path folder_, checkpoint_;
  std::vector<std::pair<fs::path, std::string>> files_;
  fuzz::TensorImage tensors_;
  fuzz::Mutator mutator_;
};

const fuzz::Registered<CheckpointFuzzer> kCheckpointFuzzer("checkpoint");

}  // namespace
}  // namespace essh
