#pragma once
#include <string>
#include <vector>

#include "essh/tensor/matrix.h"

namespace essh {

struct ModelConfig;

// How much of a model runs: the first channels of every mixer and the first units of every feed-forward.
struct Capacity {
  Index channels = 0;
  Index ffn = 0;
  bool operator==(const Capacity&) const = default;
};

// A capacity with the name it was asked by: "T4", or "custom".
struct Tier {
  std::string name;
  double budget = 0;  // xi; 0 when the capacity was given by its sizes
  Capacity capacity;
};

// xi of T1..T10 and of the capacities sampled in pretraining.
std::vector<double> deployment_budgets();
std::vector<double> training_budgets();

// The two-rate map: K = max(1, round(K_full xi^a)), n = 64 max(1, floor(n_full xi^b / 64)), never above the full sizes.
Capacity capacity_at(const ModelConfig& config, double budget);
Capacity full_capacity(const ModelConfig& config);

// The named tiers of a family; one tier "full" for a model of fixed capacity.
std::vector<Tier> tiers_of(const ModelConfig& config);
// "T4", "full", "xi=0.3" or "18x1792" (channels x ffn). Errors name what there is.
Tier find_tier(const ModelConfig& config, const std::string& name);
// Given sizes, checked against the full ones.
Tier custom_tier(const ModelConfig& config, Index channels, Index ffn);

}  // namespace essh
