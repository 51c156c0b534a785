#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "essh/evaluate/frontier.h"
#include "essh/evaluate/metrics.h"

namespace essh {

struct RunReport {
  std::string name;
  RunMetrics metrics;
  std::string recipe;  // empty: none was found
  std::optional<Frontier> frontier = {};
};

// metrics.jsonl and, where they are, recipe.yaml and frontier.json of a run folder.
RunReport read_run(const std::filesystem::path& folder);

// One HTML page: a summary, loss curves, capacity shares, learning rate, throughput, gradient norm, the frontier and
// the recipe. No script and no reference to anything outside; text from files is escaped. Curves of long runs are means
// of neighbouring steps.
std::string to_html(const RunReport& report);

}  // namespace essh
