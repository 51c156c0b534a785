#pragma once
#include <filesystem>

namespace essh {

// Names inside the folder of a training run.
inline constexpr const char* kRunRecipe = "recipe.yaml";
inline constexpr const char* kRunRecord = "run.json";
inline constexpr const char* kRunLock = "lock";
inline constexpr const char* kRunFrontier = "frontier.json";
inline constexpr const char* kRunReport = "report.html";

struct StageFiles {
  const char* metrics;
  const char* checkpoints;
  const char* model;  // the result, a model folder
};
inline constexpr StageFiles kPretrainingFiles{"metrics.jsonl", "checkpoints", "pretrained"};
inline constexpr StageFiles kRefinementFiles{"refine-metrics.jsonl", "refine-checkpoints", "refined"};

// The model folder of a path: the path itself, or the refined or pretrained model of a run.
std::filesystem::path model_of_run(const std::filesystem::path& path);

}  // namespace essh
