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

// The figures of one document of `essh evaluate ... --json`, or of a list of documents: perplexity of `ppl` (by domain)
// and `length`, accuracy of `recall` and `dna --classify`, full keys of `niah`, the main metric of every task of
// `tasks` and their mean, bits per base of `dna`. `place` starts error messages.
std::vector<QualityFigure> quality_figures(const Json& document, const std::string& place);

}  // namespace essh
