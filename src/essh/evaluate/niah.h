#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/result_journal.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/plot/svg.h"
#include "essh/text/tokenizer.h"

namespace essh {

// Needle in a haystack: filler tokens with one sentence that has a six-digit key; the text ends with the beginning of
// that sentence. Each pair of keys is tried at every depth and length.
struct NiahOptions {
  std::vector<Tier> tiers;
  std::vector<Index> lengths = {2048};  // tokens before the expected key
  std::vector<double> depths = {0.1, 0.3, 0.5, 0.7, 0.9};
  Index pairs = 256;
  // The text has the second key of a pair and the first is its rival; if false, the other way round.
  bool counterfactual = true;
  std::uint64_t seed = 1;
  int bootstrap = 2000;  // resamples of key pairs, each with all its depths
};

struct NiahTrial {
  std::size_t tier = 0;
  Index length = 0;
  std::size_t depth = 0;
  Index pair = 0;
  std::size_t filler = 0;  // offset of its filler
  std::string expected = {}, rival = {};
  double expected_score = 0, rival_score = 0;  // log-likelihoods of the two keys
  bool first = false;                          // the first token of the expected key has the largest logit
  bool full = false;                           // every token has, given the right tokens before it
};

// A share of trials and half the width of its 95% interval.
struct NiahShare {
  double value = 0, half_width = 0;
};

struct NiahResult {
  std::size_t tier = 0;
  Index length = 0;
  NiahShare margin = {}, first = {}, full = {};  // margin: the expected key scores higher than its rival
  std::vector<double> full_by_depth = {};
  std::vector<double> first_by_depth = {};
};

struct NiahReport {
  NiahOptions options;
  std::vector<Index> parameters;
  std::vector<NiahTrial> trials;  // by tier, length, pair and depth
  std::vector<NiahResult> results;
};

// Each pair takes its filler from a random offset of `filler`, which is read as a ring. Scores in the journal are
// reused; new ones are added pass by pass.
NiahReport measure_niah(Engine& engine, const Tokenizer& tokenizer, std::span<const TokenId> filler,
                        const NiahOptions& options, ResultJournal& journal);

// Half the distance between percentiles 2.5 and 97.5 (linear between samples) of the mean over bootstrap resamples of
// clusters, drawn as by Python's random.Random(seed).choices(). `sums` has the sum of each cluster of `size` trials.
double bootstrap_half_width(std::span<const double> sums, double size, int resamples, std::uint32_t seed);

Json to_json(const NiahReport& report, const std::string& model, const ResultProvenance& provenance);
// One trial: a line of the dump.
Json to_json(const NiahTrial& trial, const NiahReport& report);
// For each length: shares of full keys and of first tokens against depth, one curve per tier.
plot::Figure draw(const NiahReport& report, const std::string& title);

// The default filler, to be repeated.
std::string niah_sentences();

}  // namespace essh
