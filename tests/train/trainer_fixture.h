#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "essh/base/rng.h"
#include "essh/data/prepare.h"
#include "essh/model/initialise.h"
#include "essh/text/tokenizer.h"
#include "essh/train/trainer.h"

namespace essh {
namespace fs = std::filesystem;

// A byte-level dataset with structure, and a recipe small enough for many steps.
struct TrainerTest : ::testing::Test {
  fs::path folder;

  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "essh-train-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    prepare_data("word", folder / "data");
  }
  // Data in which `word` repeats with numbers.
  void prepare_data(const std::string& word, const fs::path& target) {
    std::ofstream text(folder / "text.txt");
    Rng rng(1);
    for (int document = 0; document < 60; ++document) {
      for (int i = 0; i < 120; ++i) text << word << rng.below(12) << (i % 9 == 8 ? ".\n" : " ");
      text << "\n<|endoftext|>\n";
    }
    text.close();
    const auto tokenizer = std::shared_ptr<Tokenizer>(make_byte_tokenizer());
    PrepareOptions options;
    options.inputs = {(folder / "text.txt").string()};
    options.folder = target;
    options.valid_fraction = 0.2;
    prepare(options, {.format = {.tokenizer_hash = tokenizer->hash(), .vocab_size = tokenizer->vocab_size()},
                      .eos_id = *tokenizer->eos(),
                      .encode = [tokenizer](std::string_view piece, std::vector<std::int32_t>& ids) {
                        tokenizer->encode(piece, ids);
                      }});
  }
  void TearDown() override { fs::remove_all(folder); }

  Recipe recipe(std::vector<std::string> settings = {}) const {
    std::vector<std::string> all = {"data.path=" + (folder / "data").string(),
                                    "data.context=40",
                                    "model.hidden_size=32",
                                    "model.intermediate_size=192",
                                    "model.num_hidden_layers=2",
                                    "model.attention_layers=[1]",
                                    "model.sliding_window=16",
                                    "run.steps=24",
                                    "run.batch=8",
                                    "run.micro_batch=2",
                                    "optimizer.algorithm=adamw",
                                    "optimizer.rate=2e-3",
                                    "optimizer.embedding_rate=1",
                                    "elastic.smallest_share=0",
                                    "elastic.warmup_tokens=600",
                                    "elastic.full_share=0.5",
                                    "elastic.ordering_period=5",
                                    "run.validation_windows=8",
                                    "run.validate_every=8",
                                    "run.checkpoint_every=4",
                                    "refine.steps=6",
                                    "refine.batch=4"};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_recipe("tiny", all);
  }

  struct Setup {
    Recipe recipe;
    TrainingData data;
    ModelConfig config;
    Stream stream;
    std::unique_ptr<comm::Group> alone = comm::make_single_group();
    Setup(const Recipe& r, int threads)
        : recipe(r),
          data(r.data),
          config(recipe_config(r, data.vocab_size(), data.eos_id())),
          stream(cpu_stream(threads)) {}
    std::unique_ptr<Trainer<float>> trainer() { return trainer(*alone); }
    std::unique_ptr<Trainer<float>> trainer(comm::Group& group) {
      auto made =
          std::make_unique<Trainer<float>>(make_pretraining(recipe, config), recipe, config, data, stream, group);
      Parameters<float> weights(config);
      initialise(weights, config, recipe.run.seed);
      made->start(weights);
      return made;
    }
  };
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
using States = std::map<std::string, std::vector<float>>;
inline bool same_bits(const States& a, const States& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
}

}  // namespace essh
