#pragma once
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/data/dataset.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/text/tokenizer.h"

namespace essh {

// The paper's held-out loss: disjoint windows of context + 1 tokens from the start of the validation split, each from
// an empty state. Only targets A, C, G and T count.
struct DnaOptions {
  std::vector<Tier> tiers = {};
  Index context = 1024;
  Index windows = 4000;  // fewer if the split ends
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
  Index training_bases = 0;  // counted by the Markov chains
  std::vector<TierBits> tiers = {};
  // By order from 0: bits per base, on the same windows, of Markov chains counted over the training split.
  std::vector<double> markov = {};
};

DnaReport measure_dna(Engine& engine, const Dataset& dataset, const Tokenizer& tokenizer, const DnaOptions& options);

// {"model", "protocol", "context", "windows", "bases", "training_bases", "results": [{"tier", "parameters",
// "bits_per_base"}], "markov": [{"order", "bits_per_base"}], "provenance"}
Json to_json(const DnaReport& report, const std::string& model, const ResultProvenance& provenance);

}  // namespace essh
