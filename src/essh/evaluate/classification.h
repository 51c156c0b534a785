#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/text/tokenizer.h"
#include "essh/train/classifier.h"

namespace essh {

struct Example {
  std::vector<TokenId> tokens;
  std::int32_t label = 0;
};

// Sequences with classes, split for training and testing.
struct ClassificationSet {
  std::string name;
  std::vector<std::string> classes = {};  // sorted by name; a label is an index
  std::vector<Example> train = {}, test = {};
  std::string fingerprint = {};  // SHA-256 of the examples

  // Accuracy on the test split of always naming its most frequent class.
  double majority() const;
};

struct SetOptions {
  std::string set = {};     // takes the rows whose column `set` has this value; empty: all
  Index max_length = 1024;  // longer sequences lose their end
  double test_share = 0.2;  // of each class, drawn with seed 0, where the files do not say
};

// Files are TSV or CSV with the columns class (or label), seq (or sequence) and maybe split (train, test) and set; or
// FASTA files, one for each class, which has the name of its file.
ClassificationSet read_classification_set(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                                          const SetOptions& options);

// The Genomic Benchmarks protocol: a share of the training split is set aside for validation, the model learns for some
// epochs, and the test accuracy counts at the epoch with the highest validation accuracy (the first of equal ones).
struct FineTuneOptions {
  Index epochs = 10;
  Index batch = 32;
  double rate = 1e-3;
  double validation_share = 0.1;
  Pooling pooling = Pooling::Mean;
  std::uint64_t seed = 0;  // of the validation split, the order and the head
};

struct FineTuned {
  Index best_epoch = 0;  // from 1
  double validation = 0, test = 0;
  std::vector<double> validation_by_epoch = {};
};

// `weights` of a model of this config; after_epoch(epoch) is called with the epochs done.
FineTuned fine_tune(const ModelConfig& config, const Parameters<float>& weights, const ClassificationSet& set,
                    const FineTuneOptions& options, Stream& stream, const std::function<void(Index)>& after_epoch);

Json to_json(const FineTuned& result);
FineTuned fine_tuned_from(const Json& json);

}  // namespace essh
