#include "essh/model/cost.h"

#include "essh/model/mixer.h"
#include "essh/model/slice.h"

namespace essh {

Cost cost_of(const ModelConfig& family, Capacity capacity) {
  const auto config = slice(family, capacity);
  Cost cost;
  for (const auto& spec : tensor_list(config)) cost.parameters += spec.rows * spec.cols;
  for (const auto& part : model_state(config, Format::BF16)) {
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

}  // namespace essh
