#pragma once
#include <string>
#include <vector>

#include "essh/base/json_fwd.h"

namespace essh {

// One figure of one tier from a result document of `essh evaluate`.
struct QualityFigure {
  std::string name;  // of its column: "lambada", "niah 1024", "bits/base"
  std::string tier;
  std::string model_hash;
  double value = 0;
};

// The figures of a document that `essh evaluate ... --json` printed, or of a list of them: the perplexity of `ppl` (by
// its domain) and `length`, the accuracy of `recall` and of `dna --classify`, the full keys of `niah`, the main metric
// of every task of `tasks` and their mean, the bits per base of `dna`. `place` starts the message of a failure.
std::vector<QualityFigure> quality_figures(const Json& document, const std::string& place);

}  // namespace essh
