#pragma once
#include "essh/model/model.h"

namespace essh {

// Tokens of some sequences: row after row of inputs, and for each the token that follows.
struct TokenRows {
  Index sequences = 0;
  Index length = 0;
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;

  Index tokens() const { return sequences * length; }
};

// Sums over tokens, to be divided by their number.
struct LossSums {
  double label = 0;
  double divergence = 0;
  Index tokens = 0;
};

// A fixed model to learn from. Its hidden states for the same tokens are computed once and kept.
struct Teacher {
  const Model<float>* model = nullptr;
  Weights<float> weights{};
  Matrix<const float> hidden{};
};

// What one micro-batch counts: label * CE + kl * KL + tv * TV, all times `scale`.
struct ObjectiveWeights {
  double label = 1, kl = 0, tv = 0;
  double scale = 1;
  double ffn_gradient = 1, mixer_gradient = 1;
};

// Forward and backward passes over micro-batches. Logits are held for `loss_rows` positions at a time, never all (0:
// all).
class Objective {
 public:
  Objective(const Model<float>& model, Stream& stream, Index loss_rows);

  // Adds the gradient of one micro-batch at a capacity. With a teacher, its divergence counts too. When `squares` is
  // given (layers x units), the squared activations of the feed-forwards are added to it. Memory of `hidden` below
  // stays valid until release().
  LossSums learn(const Weights<float>& weights, const Gradients<float>& gradients, const TokenRows& rows,
                 Capacity capacity, const ObjectiveWeights& counts, const Teacher* teacher, Matrix<double> squares,
                 Matrix<const float>* hidden = nullptr);
  // Hidden states of a model without a tape, kept until release().
  Matrix<const float> observe(const Model<float>& model, const Weights<float>& weights, const TokenRows& rows,
                              Capacity capacity);
  // Label losses alone.
  LossSums score(const Weights<float>& weights, const TokenRows& rows, Capacity capacity);
  void release() { arena_.release(); }
  std::size_t memory() const { return arena_.capacity(); }

 private:
  Pass pass_over(const TokenRows& rows, Capacity capacity) {
    return {stream_, arena_, capacity, rows.sequences, rows.length};
  }
  Index chunk_rows(Index tokens) const { return loss_rows_ > 0 ? std::min(loss_rows_, tokens) : tokens; }

  const Model<float>& model_;
  Stream& stream_;
  Arena arena_;
  Index loss_rows_;
};

}  // namespace essh
