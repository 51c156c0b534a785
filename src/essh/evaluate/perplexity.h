#pragma once
#include <optional>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/evaluation_text.h"
#include "essh/evaluate/result_journal.h"
#include "essh/evaluate/result_provenance.h"

namespace essh {

inline constexpr Index kDefaultContext = 2048;

struct PerplexityOptions {
  std::vector<Tier> tiers = {};
  Index context = kDefaultContext;
  Index windows = 0;  // at most this many, from the first; 0: all
  Index batch = 0;    // windows in one pass; 0: about 4096 tokens
  // Windows share no token: each has context + 1 tokens, and the first of them is no target.
  bool disjoint = false;
  // Every document is one sequence from an empty state to its end, in pieces of `context` tokens; `windows` counts
  // documents.
  bool stateful = false;
  Index full_parameters = 0;         // of the family at full capacity; 0: unknown
  ResultJournal* journal = nullptr;  // keeps the losses of finished passes
};

// The paper's evaluation on other domains: documents joined by line breaks, disjoint windows of 2049 tokens, at most
// 400 of them.
inline constexpr Index kCrossDomainWindows = 400;

struct TierPerplexity {
  Tier tier;
  Index parameters = 0;
  double nll = 0;  // mean over the predicted tokens, in nats
  double perplexity = 0;
  double bits_per_byte = 0;  // 0: the bytes are unknown
  double fraction = 0;       // r, of the family's full parameters; 0: unknown
  // nll - nll of the full capacity, if that is among the tiers.
  std::optional<double> nll_difference = {};
};

struct PerplexityReport {
  Index context = 0;
  bool disjoint = false, stateful = false;
  Index windows = 0;   // or documents
  Index tokens = 0;    // predicted
  Index left_out = 0;  // tokens after the last window
  double bytes = 0;    // of text behind the predicted tokens; 0: unknown
  // Total, and forward passes of the tiers. Passes from the journal count with the forward time they took.
  double seconds = 0, forward_seconds = 0;
  std::vector<TierPerplexity> tiers = {};  // in the order of the options
};

// Windows of context + 1 tokens overlap by one token, so that each token but the first of the text is a target once;
// `disjoint` windows do not overlap. In each window the model starts from an empty state, reads `context` tokens and
// predicts the token after each. An incomplete last window is left out. With `stateful`, documents end with the model's
// end-of-text token, and all tokens of a document but its first are targets. All tiers are measured in one pass over
// the text. perplexity = exp(nll), bits per byte = tokens * nll / (ln 2 * bytes).
PerplexityReport measure_perplexity(Engine& engine, const EvaluationText& text, const PerplexityOptions& options);

// {"model", "protocol", "context", "windows", "results": [{"tier", "parameters", "parameter_fraction", "tokens", "nll",
// "nll_difference", "perplexity", "bits_per_byte"}], "seconds", "forward_seconds", "provenance"}; unknown values are
// null. The protocol is "stateful", "cross-domain" for disjoint windows, "validation" otherwise.
Json to_json(const PerplexityReport& report, const std::string& model, const ResultProvenance& provenance);

}  // namespace essh
