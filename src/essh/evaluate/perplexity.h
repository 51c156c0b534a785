#pragma once
#include <optional>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/evaluation_text.h"
#include "essh/evaluate/result_provenance.h"

namespace essh {

inline constexpr Index kDefaultContext = 2048;

struct PerplexityOptions {
  std::vector<Tier> tiers = {};
  Index context = kDefaultContext;
  Index windows = 0;  // the first so many; 0: all
  Index batch = 0;    // windows in one pass; 0: as many as make a pass of about 4096 tokens
  // Windows share no token: each has context + 1 tokens of its own, of which the first is only read.
  bool disjoint = false;
  // Every document is one sequence from nothing to its end, read `context` tokens at a time; `windows` counts
  // documents.
  bool stateful = false;
  Index full_parameters = 0;  // of the family at full capacity; 0: unknown
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
  // nll minus that of the full capacity, when that is among the tiers.
  std::optional<double> nll_difference = {};
};

struct PerplexityReport {
  Index context = 0;
  bool disjoint = false, stateful = false;
  Index windows = 0;                        // or documents
  Index tokens = 0;                         // predicted
  Index left_out = 0;                       // tokens after the last window
  double bytes = 0;                         // of text behind the predicted tokens; 0: unknown
  double seconds = 0, forward_seconds = 0;  // in all, and in the forward passes of the tiers
  std::vector<TierPerplexity> tiers = {};   // as asked for
};

// Cuts the text into windows of context + 1 tokens that overlap by one, so that each token but the first is a target
// once, or not at all (`disjoint`); in each, the model starts from nothing, reads `context` tokens and predicts the
// token after each. A rest too short for a window is left out. perplexity = exp(nll), bits per byte = tokens * nll /
// (ln 2 * bytes). All tiers are measured in one pass over the text. Stateful, a document ends with the model's
// end-of-text token, and all its tokens but the first are targets.
PerplexityReport measure_perplexity(Engine& engine, const EvaluationText& text, const PerplexityOptions& options);

// {"model", "protocol", "context", "windows", "results": [{"tier", "parameters", "parameter_fraction", "tokens", "nll",
// "nll_difference", "perplexity", "bits_per_byte"}], "seconds", "forward_seconds", "provenance"}; what is unknown is
// null. The protocol is "stateful", "cross-domain" for disjoint windows, "validation" otherwise.
Json to_json(const PerplexityReport& report, const std::string& model, const ResultProvenance& provenance);

}  // namespace essh
