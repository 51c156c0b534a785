#pragma once
#include "essh/model/tensors.h"

namespace essh {

// One capacity of a family as a model of its own: the one definition behind exports, decoding, specialists and costs.

// The config of the slice: sizes cut, no longer a family. At full capacity, the family itself.
ModelConfig slice(const ModelConfig& config, Capacity capacity);
// The handles of the slice: prefixes of rows and columns, in place.
Weights slice(const ModelConfig& config, const Weights& weights, Capacity capacity);
// The slice copied.
template <class W>
Parameters<W> slice(const ModelConfig& config, const Parameters<W>& parameters, Capacity capacity);

}  // namespace essh
