#include "essh/model/cost.h"

#include "essh/model/mixer.h"

namespace essh {

Cost cost_of(const ModelConfig& config, Capacity capacity) {
  Cost cost;
  for (const auto& spec : tensor_list(config)) cost.parameters += spec.kept_rows(capacity) * spec.kept_cols(capacity);
  Index work = config.vocab_size * config.hidden_size;
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto bytes = mixer_state_bytes(config, layer, capacity);
    cost.state_bytes += bytes.recurrent;
    cost.kv_bytes += bytes.window;
    work += mixer_work(config, layer, capacity) + 3 * config.hidden_size * capacity.ffn;
  }
  cost.flops_per_token = 2 * work;
  return cost;
}

}  // namespace essh
