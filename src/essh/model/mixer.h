#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "essh/device/stream.h"
#include "essh/model/tensors.h"

namespace essh {

// One pass over `sequences` stretches of `length` tokens, rows sequence-major, at one capacity.
struct Pass {
  Stream& stream;
  Arena& arena;
  Capacity capacity;
  Index sequences = 1;
  Index length = 1;
  // Factors on the weight gradients of feed-forwards and mixers (the paper's alpha_ff and alpha_mix).
  double ffn_gradient_scale = 1;
  double mixer_gradient_scale = 1;
  // When given, layers x units: feed-forwards add the squares of their hidden activations, summed over tokens.
  Matrix<double> ffn_squares = {};
  // When given, backward calls it with every layer whose weight gradients are complete, from the last to the first.
  const std::function<void(Index)>* layer_done = nullptr;

  Index tokens() const { return sequences * length; }
};

// Where each sequence stands, for the host and for the kernels; on the CPU both are one array.
struct Positions {
  Vector<const Index> host, device;
};

// What a mixer's forward pass keeps for its backward pass. Memory comes from the pass's arena.
struct MixerTape {
  virtual ~MixerTape() = default;
};

// The part of a block that mixes tokens. A kind of mixer is one pair of files: its tensors, forward, backward and
// recurrent extension; it is known elsewhere only to make_mixer and mixer_tensors. Mixers hold shapes, never weights.
template <class T>
class Mixer {
 public:
  virtual ~Mixer() = default;

  // y = x + mix(u); y may be x. The tape is filled when it will be wanted by backward; its memory outlives the call.
  virtual void forward(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<const T> x, Matrix<T> y,
                       std::unique_ptr<MixerTape>* tape) const = 0;
  // d_u = gradient of u given d_y; gradients of the weights are added.
  virtual void backward(const Pass& pass, const Weights<T>& weights, const Gradients<T>& gradients, Matrix<const T> u,
                        Matrix<const T> d_y, const MixerTape& tape, Matrix<T> d_u) const = 0;

  // Elements of recurrent state per sequence at a capacity.
  virtual Index state_size(Capacity capacity) const = 0;
  // x += mix(u) for `length` more tokens of each sequence, whose state (one row per sequence) stands at `positions`;
  // the state advances.
  virtual void extend(const Pass& pass, const Weights<T>& weights, Matrix<const T> u, Matrix<T> x,
                      Matrix<Wide<T>> state, Positions positions) const = 0;
};

// The tensors of the mixer of a layer, names without the layer's prefix.
std::vector<ModelTensor> mixer_tensors(const ModelConfig& config, Index layer);
template <class T>
std::unique_ptr<Mixer<T>> make_mixer(const ModelConfig& config, const ParameterLayout& layout, Index layer);

// Recurrent state bytes (float32) and window cache bytes (bf16) of a layer's mixer for one sequence.
struct StateBytes {
  Index recurrent = 0;
  Index window = 0;
};
StateBytes mixer_state_bytes(const ModelConfig& config, Index layer, Capacity capacity);
// Multiply-adds per token of a layer's mixer in decoding with a full window.
Index mixer_work(const ModelConfig& config, Index layer, Capacity capacity);

}  // namespace essh
