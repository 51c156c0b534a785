#include "essh/model/mixer.h"

#include "essh/model/spectral_mixer.h"
#include "essh/model/window_mixer.h"

namespace essh {

std::vector<ModelTensor> mixer_tensors(const ModelConfig& config, Index layer) {
  return config.is_attention(layer) ? window_mixer_tensors(config) : spectral_mixer_tensors(config);
}

template <class T>
std::unique_ptr<Mixer<T>> make_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) {
  if (config.is_attention(layer)) return make_window_mixer<T>(config, layout, layer);
  return make_spectral_mixer<T>(config, layout, layer);
}

StateBytes mixer_state_bytes(const ModelConfig& config, Index layer, Capacity capacity) {
  if (config.is_attention(layer)) return {.window = window_mixer_state(config) * 2};
  return {.recurrent = spectral_mixer_state(config, capacity) * 4};
}

Index mixer_work(const ModelConfig& config, Index layer, Capacity capacity) {
  return config.is_attention(layer) ? window_mixer_work(config) : spectral_mixer_work(config, capacity);
}

template std::unique_ptr<Mixer<float>> make_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<double>> make_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<BFloat16>> make_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
