#pragma once
#include "essh/model/model.h"
#include "essh/train/master_weights.h"
#include "essh/train/optimizer.h"

namespace essh {

// Sequences with a class each, in host memory. Rows are padded at their ends to one length; the padding may be any
// token.
struct LabelledRows {
  Index sequences = 0;
  Index length = 0;
  std::vector<std::int32_t> inputs = {};  // sequences x length
  std::vector<Index> lengths = {};        // of each sequence, from 1 to `length`
  std::vector<std::int32_t> labels = {};
};

// Which of a sequence's last hidden states the head reads: their mean, or the last one.
enum class Pooling { Mean, Last };

struct ClassifierOptions {
  Index classes = 2;
  Pooling pooling = Pooling::Mean;
  OptimizerRecipe optimizer = {};  // its schedule is the caller's
  std::uint64_t seed = 0;          // of the head's initial weights
};

// A model with a linear head over pooled hidden states: logits = pool(hidden) H^T, H of classes x width, initially
// N(0, 0.02). All weights learn, in float32. The model is causal, so that padding does not reach what the head reads.
class Classifier {
 public:
  // At the full capacity of `config`; `stream` outlives it.
  Classifier(const ModelConfig& config, const Parameters<float>& weights, const ClassifierOptions& options,
             Stream& stream);

  struct Step {
    double loss = 0;  // mean cross-entropy of the rows, before the step
    double norm = 0;  // of the gradient, before clipping
  };
  // One AdamW step on the mean cross-entropy of the rows.
  Step learn(const LabelledRows& rows, double rate);
  // sequences x classes.
  std::vector<float> logits(const LabelledRows& rows);

 private:
  // Row s holds the weights with which the head pools the tokens of sequence s: sequences x tokens.
  Matrix<const float> pooling_of(const LabelledRows& rows);
  Pass pass_over(const LabelledRows& rows) {
    return {stream_, arena_, full_capacity(model_.config()), rows.sequences, rows.length};
  }
  Matrix<float> head() const { return dense(head_.data(), options_.classes, model_.config().hidden_size); }

  ClassifierOptions options_;
  Stream& stream_;
  Model<float> model_;
  std::unique_ptr<comm::Group> group_;
  Shards shards_;
  MasterWeights<float> weights_;
  Array<float> gradient_;
  std::unique_ptr<Optimizer> optimizer_;
  Array<float> head_, head_gradient_, head_first_, head_second_;
  Array<double> squares_;
  Arena arena_;
};

}  // namespace essh
