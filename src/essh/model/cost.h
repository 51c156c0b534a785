#pragma once
#include "essh/model/capacity.h"

namespace essh {

struct ModelConfig;

// What a capacity costs, from shapes alone.
struct Cost {
  Index parameters = 0;
  Index state_bytes = 0;      // recurrent state of one sequence, float32
  Index kv_bytes = 0;         // window caches of one sequence, bf16
  Index flops_per_token = 0;  // decoding with a full window, head included; a multiply-add is two
};

Cost cost_of(const ModelConfig& config, Capacity capacity);

}  // namespace essh
