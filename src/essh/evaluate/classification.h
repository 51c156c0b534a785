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

// Labelled sequences, split into training and test.
struct ClassificationSet {
  std::string name;
  std::vector<std::string> classes = {};  // sorted by name; a label is an index
  std::vector<Example> train = {}, test = {};
  std::string fingerprint = {};  // SHA-256 of the examples

  // Test accuracy of always answering the most frequent class.
  double majority() const;
};

struct SetOptions {
  std::string set = {};     // only rows with this value in column `set`; empty: all
  Index max_length = 1024;  // longer sequences are cut at the right
  double test_share = 0.2;  // of each class, drawn with seed 0, for files without a column `split`
};

// Files are TSV or CSV with the columns class (or label), seq (or sequence) and optionally split (train, test) and set;
// or FASTA, one file per class, whose name is the class.
ClassificationSet read_classification_set(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                                          const SetOptions& options);

// The Genomic Benchmarks protocol: a share of the training split is held out for validation, and the result is the test
// accuracy after the epoch with the highest validation accuracy (of equal ones, the first).
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

// `weights` belong to a model of this config. after_epoch(n) is called after epoch n, counted from 1.
FineTuned fine_tune(const ModelConfig& config, const Parameters<float>& weights, const ClassificationSet& set,
                    const FineTuneOptions& options, Stream& stream, const std::function<void(Index)>& after_epoch);

Json to_json(const FineTuned& result);
FineTuned fine_tuned_from(const Json& json);

}  // namespace essh
