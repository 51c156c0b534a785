#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "essh/model/capacity.h"
#include "essh/model/config.h"

namespace essh {

// The tiers of `--tiers all` or `--tiers T1,T4,xi=0.3` for the model in a folder, in the given order. Each capacity
// occurs once.
std::vector<Tier> choose_tiers(const std::filesystem::path& folder, const ModelConfig& config,
                               const std::vector<std::string>& names);

}  // namespace essh
