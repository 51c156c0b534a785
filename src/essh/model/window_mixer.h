#pragma once
#include "essh/model/mixer.h"

namespace essh {

// Causal attention over the last `sliding_window` positions with rotary positions; the same at every capacity.
// Its recurrent state is a ring of rotated keys and one of values: position p lies in row p modulo the window.
std::vector<ModelTensor> window_mixer_tensors(const ModelConfig& config);
template <class T>
std::unique_ptr<Mixer<T>> make_window_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer);
Index window_mixer_state(const ModelConfig& config);
Index window_mixer_work(const ModelConfig& config);

}  // namespace essh
