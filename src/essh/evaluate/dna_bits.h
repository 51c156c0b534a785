#pragma once
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/data/dataset.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/text/tokenizer.h"

namespace essh {

// The paper's held-out loss: disjoint windows of context + 1 tokens from the start of the validation split, each from
// nothing; bits of the targets that are A, C, G or T.
struct DnaOptions {
  std::vector<Tier> tiers = {};
  Index context = 1024;
  Index windows = 4000;  // fewer where the split ends
  Index batch = 16;      // windows in one pass
  int order = 5;         // of the Markov chain
};

struct TierBits {
  Tier tier;
  Index parameters = 0;
  double bits = 0;  // per base
};

struct DnaReport {
  Index context = 0, windows = 0;
  Index bases = 0;           // predicted
  Index training_bases = 0;  // that the Markov chains counted
  std::vector<TierBits> tiers = {};
  // Bits per base of Markov chains of order 0, 1, ... counted over the training split, on the same windows.
  std::vector<double> markov = {};
};

DnaReport measure_dna(Engine& engine, const Dataset& dataset, const Tokenizer& tokenizer, const DnaOptions& options);

// {"model", "protocol", "context", "windows", "bases", "training_bases", "results": [{"tier", "parameters",
// "bits_per_base"}], "markov": [{"order", "bits_per_base"}], "provenance"}
Json to_json(const DnaReport& report, const std::string& model, const ResultProvenance& provenance);

}  // namespace essh
