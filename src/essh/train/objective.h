#pragma once
#include "essh/model/model.h"

namespace essh {

// Sequences in host memory: rows of inputs, and for each input the token that follows.
struct TokenRows {
  Index sequences = 0;
  Index length = 0;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;

  Index tokens() const { return sequences * length; }
};

// The same on the device.
struct PlacedRows {
  Index sequences = 0;
  Index length = 0;
  Vector<const std::int32_t> inputs{};
  Vector<const std::int32_t> targets{};

  Index tokens() const { return sequences * length; }
};

// Running sums on the device: label losses, divergences, counted tokens (see LossSum).
inline constexpr Index kLossTotals = 3;

// A fixed model to learn from, by its hidden states for the same tokens.
template <class T>
struct Teacher {
  const Model<T>* model = nullptr;
  const Weights* weights = nullptr;
  Matrix<const T> hidden{};
};

// The loss of a micro-batch: scale * (label * CE + kl * KL + tv * TV).
struct ObjectiveWeights {
  double label = 1, kl = 0, tv = 0;
  double scale = 1;
  double ffn_gradient = 1, mixer_gradient = 1;
};

// Further outputs of a pass with gradient, all on the device.
template <class T>
struct LearnOutputs {
  Vector<double> totals;              // (+=) losses
  Matrix<double> squares = {};        // (+=) if given, layers x units: squared activations of the feed-forwards
  Matrix<const T>* hidden = nullptr;  // (=) if given: last hidden states, valid until release()
  // If given, called with every layer whose gradients are complete.
  const std::function<void(Index)>* layer_done = nullptr;
};

// Forward and backward passes over micro-batches. Logits exist for `loss_rows` positions at a time (0: all). Never
// waits for the device.
template <class T>
class Objective {
 public:
  Objective(const Model<T>& model, Stream& stream, Index loss_rows);

  // Copies tokens to the device, where they stay until release(). All other members only launch kernels: after a
  // release() they find the same memory again, so a Recording may repeat them with other tokens.
  PlacedRows place(const TokenRows& rows);
  // Adds the gradient of one micro-batch at a capacity. With a teacher, the loss includes the divergence.
  void learn(const Weights& weights, const Gradients<T>& gradients, const PlacedRows& rows, Capacity capacity,
             const ObjectiveWeights& counts, const Teacher<T>* teacher, const LearnOutputs<T>& outputs);
  // Hidden states without a tape, valid until release(). Adds squared activations as in LearnOutputs.
  Matrix<const T> observe(const Model<T>& model, const Weights& weights, const PlacedRows& rows, Capacity capacity,
                          Matrix<double> squares = {});
  // Label losses alone, added to `totals`.
  void score(const Weights& weights, const PlacedRows& rows, Capacity capacity, Vector<double> totals);

  // Releases the scratch of the passes.
  Arena& arena() { return arena_; }
  void release() { arena_.release(); }
  std::size_t memory() const { return arena_.touched(); }

 private:
  Pass pass_over(const PlacedRows& rows, Capacity capacity) {
    return {stream_, arena_, capacity, rows.sequences, rows.length};
  }
  Index chunk_rows(Index tokens) const { return loss_rows_ > 0 ? std::min(loss_rows_, tokens) : tokens; }

  const Model<T>& model_;
  Stream& stream_;
  Arena arena_;
  Index loss_rows_;
};

}  // namespace essh
