#include "essh/model/mixer.h"

#include "essh/model/attention_mixer.h"
#include "essh/model/spectral_mixer.h"

namespace essh {

std::vector<ModelTensor> mixer_tensors(const ModelConfig& config, Index layer) {
  return config.kind(layer) == MixerKind::Spectral ? spectral_mixer_tensors(config)
                                                   : attention_mixer_tensors(config, layer);
}

std::vector<StatePart> mixer_state(const ModelConfig& config, Index layer, const StateFormats& formats) {
  return config.kind(layer) == MixerKind::Spectral ? spectral_mixer_state(config, formats)
                                                   : attention_mixer_state(config, layer, formats);
}

Index mixer_work(const ModelConfig& config, Index layer, Index context) {
  return config.kind(layer) == MixerKind::Spectral ? spectral_mixer_work(config)
                                                   : attention_mixer_work(config, layer, context);
}

template <class T>
std::unique_ptr<Mixer<T>> make_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer) {
  if (config.kind(layer) == MixerKind::Spectral) return make_spectral_mixer<T>(config, layout, layer);
  return make_attention_mixer<T>(config, layout, layer);
}

std::vector<StatePart> model_state(const ModelConfig& config, const StateFormats& formats) {
  std::vector<StatePart> parts;
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const auto& part : mixer_state(config, layer, formats)) parts.push_back(part);
  }
  return parts;
}

template std::unique_ptr<Mixer<float>> make_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<double>> make_mixer(const ModelConfig&, const ParameterLayout&, Index);
template std::unique_ptr<Mixer<BFloat16>> make_mixer(const ModelConfig&, const ParameterLayout&, Index);

}  // namespace essh
