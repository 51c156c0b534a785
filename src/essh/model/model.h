#pragma once
#include <memory>
#include <vector>

#include "essh/model/feed_forward.h"
#include "essh/model/mixer.h"

namespace essh {

// The model of the paper: embedding, blocks (norm, mixer, residual, norm, feed-forward, residual), final norm, and the
// embedding as output head. Holds shapes only; weights, gradients and states are arguments.
template <class T>
class Model {
  using W = Wide<T>;

 public:
  explicit Model(const ModelConfig& config);

  const ModelConfig& config() const { return config_; }
  const ParameterLayout& layout() const { return layout_; }

  // Data that a forward pass keeps for backward, in the pass's arena.
  struct BlockTape {
    Residual<T> x, x_mixed;  // entering the block, and after the mixer
    Vector<W> inverse_rms, inverse_rms_mixed;
    std::unique_ptr<MixerTape> mixer;
    typename FeedForward<T>::Tape feed_forward;
  };
  struct Tape {
    std::vector<BlockTape> blocks;
    Residual<T> x;
    Vector<W> inverse_rms;
  };

  // Last hidden states after the final norm, tokens x width, in the arena. Sequences start with empty states. Without a
  // tape, scratch is released after each block.
  Matrix<T> forward(const Pass& pass, const Weights& weights, Vector<const std::int32_t> tokens, Tape* tape) const;
  // Adds the gradients of everything but the head's product, given d_hidden of the result of forward. Overwrites the
  // tape.
  void backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients,
                Vector<const std::int32_t> tokens, const Tape& tape, Matrix<const T> d_hidden) const;

  // logits = hidden E^T, rows x vocabulary, in T or Wide<T>.
  template <class Out>
  void head(const Pass& pass, const Weights& weights, Matrix<const T> hidden, Matrix<Out> logits) const;
  // d_hidden = d_logits E; E's gradient += d_logits^T hidden.
  void head_backward(const Pass& pass, const Weights& weights, const Gradients<T>& gradients, Matrix<const T> hidden,
                     Matrix<const T> d_logits, Matrix<T> d_hidden) const;

  // forward for the tokens of a recurrent pass, segment by segment; updates the states. Runs at full capacity: a tier
  // is decoded as its slice.
  Matrix<T> extend(const Pass& pass, const Weights& weights, Vector<const std::int32_t> tokens,
                   const SequenceBatch& sequences) const;

 private:
  struct Block {
    std::size_t mixer_gain, feed_forward_gain;
    std::unique_ptr<Mixer<T>> mixer;
    FeedForward<T> feed_forward;
    std::size_t first_part;  // of the state
  };
  // Uninitialised, in the arena.
  Residual<T> new_residual(Arena& arena, Index rows) const;
  // The tokens' rows of the embedding.
  Residual<T> embed(const Pass& pass, const Weights& weights, Vector<const std::int32_t> tokens) const;
  // y = norm(x); returns y.
  Matrix<T> norm(const Pass& pass, const Weights& weights, std::size_t gain, const Residual<T>& x, Matrix<T> y,
                 Vector<W> inverse_rms) const;

  ModelConfig config_;
  ParameterLayout layout_;
  std::size_t embedding_, last_gain_;
  std::vector<Block> blocks_;
};

}  // namespace essh
