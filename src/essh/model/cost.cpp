#include "essh/model/cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "essh/model/mixer.h"
#include "essh/model/slice.h"

namespace essh {

Cost cost_of(const ModelConfig& family, Capacity capacity) {
  const auto config = slice(family, capacity);
  Cost cost;
  for (const auto& spec : tensor_list(config)) cost.parameters += spec.rows * spec.cols;
  for (const auto& part : model_state(config, {.rows = Format::BF16})) {
    const Index bytes = stored_bytes(part.format, part.columns);
    if (part.kind == StatePart::Kind::Fixed)
      cost.state_bytes += bytes;
    else
      cost.kv_bytes += bytes * (part.window > 0 ? part.window : kCostContext);
  }
  Index work = config.vocab_size * config.hidden_size;
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer)
    work += mixer_work(config, layer, kCostContext) + 3 * config.hidden_size * config.intermediate_size;
  cost.flops_per_token = 2 * work;
  return cost;
}

double budget_for_parameters(const ModelConfig& config, double parameters) {
  // Budgets at which a count changes.
  std::vector<double> steps = {0, 1};
  for (const auto* axis : {&config.elastic.channels, &config.elastic.ffn}) {
    if (axis->full == 0 || axis->exponent == 0) continue;
    for (Index multiple = 1; multiple * axis->multiple <= axis->full; ++multiple) {
      const double reached = static_cast<double>(multiple) - (axis->rounding == "down" ? 0 : 0.5);
      const double share = reached * static_cast<double>(axis->multiple) / static_cast<double>(axis->full);
      steps.push_back(std::min(1.0, std::pow(share, 1 / axis->exponent)));
    }
  }
  std::sort(steps.begin(), steps.end());
  double nearest = 1, distance = INFINITY;
  const auto look = [&](double budget) {
    const double found =
        std::abs(static_cast<double>(cost_of(config, capacity_at(config, budget)).parameters) - parameters);
    if (found < distance) {
      distance = found;
      nearest = budget;
    }
  };
  look(1);
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    if (steps[i + 1] - steps[i] > 1e-9) look((steps[i] + steps[i + 1]) / 2);
  }
  return nearest;
}

}  // namespace essh
