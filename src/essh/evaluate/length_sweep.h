#pragma once
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"
#include "essh/decode/engine.h"
#include "essh/evaluate/evaluation_text.h"
#include "essh/evaluate/result_journal.h"
#include "essh/evaluate/result_provenance.h"
#include "essh/plot/svg.h"

namespace essh {

// Perplexity at several context lengths, and by the position within the context.
struct LengthOptions {
  std::vector<Tier> tiers;
  std::vector<Index> lengths = {2048, 4096, 8192, 16384};
  Index windows = 64;                // of each length; fewer if the text ends
  Index bins = 32;                   // of the positions of a window
  ResultJournal* journal = nullptr;  // keeps the losses of finished passes
};

struct LengthResult {
  std::size_t tier = 0;
  Index length = 0;
  Index windows = 0;
  double nll = 0, perplexity = 0;
  std::vector<double> curve = {};  // mean loss of the targets of each bin
};

struct LengthReport {
  LengthOptions options;
  std::vector<Index> parameters = {};
  std::vector<LengthResult> results = {};  // by tier and length
};

// Bin b of a window of `length` targets holds positions [bin_begin(b), bin_begin(b + 1)). No bin is empty if
// bins <= length.
Index bin_begin(Index bin, Index bins, Index length);

// Window w of length n is tokens w(n + 1) to w(n + 1) + n. Windows are disjoint; each starts from an empty state.
LengthReport measure_lengths(Engine& engine, const EvaluationText& text, const LengthOptions& options);

Json to_json(const LengthReport& report, const std::string& model, const ResultProvenance& provenance);
// Perplexity against length, and loss against position at the longest length.
plot::Figure draw(const LengthReport& report, const std::string& title);

}  // namespace essh
