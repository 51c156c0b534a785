#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "essh/model/capacity.h"
#include "essh/model/config.h"

namespace essh {

// Names inside a run folder.
inline constexpr const char* kRunModel = "model";
inline constexpr const char* kRunMetrics = "metrics.jsonl";
inline constexpr const char* kRunRecipe = "recipe.yaml";
inline constexpr const char* kRunFrontier = "frontier.json";

// The model folder that RUN|MODEL on a command line means: the folder itself, or the newest model of a run.
std::filesystem::path find_model_folder(const std::filesystem::path& folder);

// The tiers that `--tiers all` or `--tiers T1,T4,xi=0.3` means for a model, each once, in the order given.
std::vector<Tier> choose_tiers(const ModelConfig& config, const std::vector<std::string>& names);

}  // namespace essh
