#pragma once
#include "essh/model/model.h"

namespace essh {

// Tokens of some sequences in host memory: row after row of inputs, and for each the token that follows.
struct TokenRows {
  Index sequences = 0;
  Index length = 0;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;

  Index tokens() const { return sequences * length; }
};

// Sums over tokens on the device, which only grow: label losses, divergences, tokens that count (as LossSum adds them).
inline constexpr Index kLossTotals = 3;

// A fixed model to learn from. Its hidden states for the same tokens are computed once and kept.
template <class T>
struct Teacher {
  const Model<T>* model = nullptr;
  const Weights* weights = nullptr;
  Matrix<const T> hidden{};
};

// What one micro-batch counts: label * CE + kl * KL + tv * TV, all times `scale`.
struct ObjectiveWeights {
  double label = 1, kl = 0, tv = 0;
  double scale = 1;
  double ffn_gradient = 1, mixer_gradient = 1;
};

// Where a pass that learns leaves what else it found, all on the device.
template <class T>
struct LearnOutputs {
  Vector<double> totals;              // (+=) losses
  Matrix<double> squares = {};        // (+=) when given, layers x units: squared activations of the feed-forwards
  Matrix<const T>* hidden = nullptr;  // (=) when given: last hidden states, valid until release()
  // When given, called with every layer whose gradients are complete.
  const std::function<void(Index)>* layer_done = nullptr;
};

// Forward and backward passes over micro-batches. Logits are held for `loss_rows` positions at a time, never all (0:
// all). Nothing waits for the device.
template <class T>
class Objective {
 public:
  Objective(const Model<T>& model, Stream& stream, Index loss_rows);

  // Adds the gradient of one micro-batch at a capacity. With a teacher, its divergence counts too.
  void learn(const Weights& weights, const Gradients<T>& gradients, const TokenRows& rows, Capacity capacity,
             const ObjectiveWeights& counts, const Teacher<T>* teacher, const LearnOutputs<T>& outputs);
  // Hidden states of a model without a tape, kept until release(). Adds squared activations as in LearnOutputs.
  Matrix<const T> observe(const Model<T>& model, const Weights& weights, const TokenRows& rows, Capacity capacity,
                          Matrix<double> squares = {});
  // Label losses alone, added to `totals`.
  void score(const Weights& weights, const TokenRows& rows, Capacity capacity, Vector<double> totals);

  // Scratch between the passes.
  Arena& arena() { return arena_; }
  void release() { arena_.release(); }
  std::size_t memory() const { return arena_.touched(); }

 private:
  Pass pass_over(const TokenRows& rows, Capacity capacity) {
    return {stream_, arena_, capacity, rows.sequences, rows.length};
  }
  Vector<const std::int32_t> on_device(const std::vector<std::int32_t>& tokens);
  Index chunk_rows(Index tokens) const { return loss_rows_ > 0 ? std::min(loss_rows_, tokens) : tokens; }

  const Model<T>& model_;
  Stream& stream_;
  Arena arena_;
  Index loss_rows_;
};

}  // namespace essh
