#pragma once
#include "essh/model/capacity.h"

namespace essh {

struct ModelConfig;

// Context at which growing caches are counted: 2048 tokens and the one being decoded.
inline constexpr Index kCostContext = 2049;

// Costs of a capacity, computed from shapes.
struct Cost {
  Index parameters = 0;
  Index state_bytes = 0;      // recurrent state of one sequence, float32
  Index kv_bytes = 0;         // keys and values of one sequence, bf16: full windows, caches that grow at kCostContext
  Index flops_per_token = 0;  // decoding at that depth, head included; a multiply-add is two
};

Cost cost_of(const ModelConfig& config, Capacity capacity);

// The budget of a family whose parameter count is nearest to `parameters`; 1 for more than the family has. The budget
// lies inside the interval of budgets with these sizes, so rounding cannot change them.
double budget_for_parameters(const ModelConfig& config, double parameters);

}  // namespace essh
