#pragma once
#include "essh/model/mixer.h"

namespace essh {

// Causal attention with rotary positions and grouped queries, over the last `sliding_window` positions
// (sliding_attention) or over all (full_attention). It does not depend on the capacity. The state is a row of rotated
// keys and a row of values per token.
std::vector<ModelTensor> attention_mixer_tensors(const ModelConfig& config, Index layer);
std::vector<StatePart> attention_mixer_state(const ModelConfig& config, Index layer, const StateFormats& formats);
Index attention_mixer_work(const ModelConfig& config, Index layer, Index context);
template <class T>
std::unique_ptr<Mixer<T>> make_attention_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer);

}  // namespace essh
