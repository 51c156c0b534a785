#pragma once
#include "essh/model/mixer.h"

namespace essh {

// The selective spectral mixer: K ordered channels of m damped rotations over P values each.
//   v0 = W_value u, v = blend(v0);  write, read = 2 sigmoid(W u + b), clock = softplus(W u + b)
//   z = scan(v, write, read, clock);  y = K^(-1/2) W_out z
template <class T>
struct SpectralTape : MixerTape {
  Matrix<T> projection = {};                                         // v0 and the logits of the gates, side by side
  Matrix<T> z = {};                                                  // tokens x (channels * width)
  Matrix<Wide<T>> write = {}, read = {}, clock = {}, boundary = {};  // gates: tokens x (channels * modes)
};

std::vector<ModelTensor> spectral_mixer_tensors(const ModelConfig& config);
std::vector<StatePart> spectral_mixer_state(const ModelConfig& config, const StateFormats& formats);
Index spectral_mixer_work(const ModelConfig& config);
template <class T>
std::unique_ptr<Mixer<T>> make_spectral_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer);

}  // namespace essh
