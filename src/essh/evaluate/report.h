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
  std::optional<RunMetrics> refinement = {};
  std::string recipe;  // empty: none was found
  std::optional<Frontier> frontier = {};
};

// Metrics of a run folder (store/run_folder.h); metrics of the refinement, recipe and frontier if they exist.
RunReport read_run(const std::filesystem::path& folder);

// One HTML page: a summary, loss curves of pretraining and refinement, capacity shares, learning rate, throughput,
// gradient norm, the frontier and the recipe. No scripts, no external references; text from files is escaped. Curves of
// long runs are means of neighbouring steps.
std::string to_html(const RunReport& report);

}  // namespace essh
