#pragma once
#include "essh/model/tensors.h"

namespace essh {

// One capacity of a family as a standalone model; used by exports, decoding, specialists and costs.

// The config of the slice, with fixed capacity. At full capacity, the config of the family without slopes.
ModelConfig slice(const ModelConfig& config, Capacity capacity);
// The handles of the slice: prefixes of rows and columns, in place, or in a family with slopes computed from them, in
// the format of the weights. In host memory.
Weights slice(const ModelConfig& config, const Weights& weights, Capacity capacity);
// A copy of the slice.
template <class W>
Parameters<W> slice(const ModelConfig& config, const Parameters<W>& parameters, Capacity capacity);

}  // namespace essh
