#pragma once
#include "essh/decode/engine.h"
#include "tests/model/small_model.h"

namespace essh {

// A small family with random weights and tiers at two budgets.
inline StoredModel small_family(std::uint64_t seed = 3) {
  auto config = small_config();
  config.elastic.tiers = {0.2, 1.0};
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, seed);
  return StoredModel(std::move(model), "hash");
}

}  // namespace essh
