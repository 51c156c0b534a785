#include "essh/train/objective.h"

#include <algorithm>

#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/distillation.h"

namespace essh {
namespace {

void add(LossSums& sums, Vector<const float> label, Vector<const float> divergence,
         Vector<const std::int32_t> targets) {
  for (Index r = 0; r < label.size; ++r) {
    sums.label += static_cast<double>(label[r]);
    if (!divergence.empty()) sums.divergence += static_cast<double>(divergence[r]);
    sums.tokens += targets[r] != kIgnoredTarget;
  }
}

}  // namespace

Objective::Objective(const Model<float>& model, Stream& stream, Index loss_rows)
    : model_(model), stream_(stream), arena_(stream.device()), loss_rows_(loss_rows) {}

LossSums Objective::learn(const Weights<float>& weights, const Gradients<float>& gradients, const TokenRows& rows,
                          Capacity capacity, const ObjectiveWeights& counts, const Teacher* teacher,
                          Matrix<double> squares, Matrix<const float>* hidden_out) {
  auto pass = pass_over(rows, capacity);
  pass.ffn_gradient_scale = counts.ffn_gradient;
  pass.mixer_gradient_scale = counts.mixer_gradient;
  pass.ffn_squares = squares;
  const Index tokens = rows.tokens(), width = model_.config().hidden_size, vocabulary = model_.config().vocab_size;
  const Vector<const std::int32_t> inputs{rows.inputs.data(), tokens}, targets{rows.targets.data(), tokens};
  Matrix<float> kept;
  if (hidden_out) kept = arena_.matrix<float>(tokens, width);
  const auto mark = arena_.mark();
  Model<float>::Tape tape;
  const auto hidden = model_.forward(pass, weights, inputs, &tape);
  const auto d_hidden = arena_.matrix<float>(tokens, width);
  if (hidden_out) {
    std::copy_n(hidden.data, tokens * width, kept.data);
    *hidden_out = kept;
  }
  LossSums sums;
  const Index piece = chunk_rows(tokens);
  for (Index first = 0; first < tokens; first += piece) {
    const auto chunk_mark = arena_.mark();
    const Index count = std::min(piece, tokens - first);
    const auto logits = arena_.matrix<float>(count, vocabulary);
    const auto label = arena_.vector<float>(count);
    const Vector<const std::int32_t> chunk_targets{targets.data + first, count};
    model_.head(pass, weights, hidden.middle(first, count), logits);
    if (teacher) {
      const auto taught = arena_.matrix<float>(count, vocabulary);
      const auto divergence = arena_.vector<float>(count);
      teacher->model->head(pass, teacher->weights, teacher->hidden.middle(first, count), taught);
      launch(stream_, Distillation<float>{.logits = logits,
                                          .teacher = taught,
                                          .targets = chunk_targets,
                                          .label_loss = label,
                                          .divergence = divergence,
                                          .d_logits = logits,
                                          .label = counts.label,
                                          .kl = counts.kl,
                                          .tv = counts.tv,
                                          .scale = counts.scale});
      add(sums, label, divergence, chunk_targets);
    } else {
      launch(stream_, CrossEntropy<float>{.logits = logits,
                                          .targets = chunk_targets,
                                          .loss = label,
                                          .d_logits = logits,
                                          .scale = counts.scale * counts.label});
      add(sums, label, {}, chunk_targets);
    }
    model_.head_backward(pass, weights, gradients, hidden.middle(first, count), logits, d_hidden.middle(first, count));
    arena_.release(chunk_mark);
  }
  model_.backward(pass, weights, gradients, inputs, tape, d_hidden);
  arena_.release(mark);
  return sums;
}

Matrix<const float> Objective::observe(const Model<float>& model, const Weights<float>& weights, const TokenRows& rows,
                                       Capacity capacity) {
  return model.forward(pass_over(rows, capacity), weights, {rows.inputs.data(), rows.tokens()}, nullptr);
}

LossSums Objective::score(const Weights<float>& weights, const TokenRows& rows, Capacity capacity) {
  const auto mark = arena_.mark();
  const auto pass = pass_over(rows, capacity);
  const auto hidden = model_.forward(pass, weights, {rows.inputs.data(), rows.tokens()}, nullptr);
  LossSums sums;
  const Index piece = chunk_rows(rows.tokens());
  for (Index first = 0; first < rows.tokens(); first += piece) {
    const auto chunk_mark = arena_.mark();
    const Index count = std::min(piece, rows.tokens() - first);
    const auto logits = arena_.matrix<float>(count, model_.config().vocab_size);
    const auto label = arena_.vector<float>(count);
    const Vector<const std::int32_t> targets{rows.targets.data() + first, count};
    model_.head(pass, weights, hidden.middle(first, count), logits);
    launch(stream_, CrossEntropy<float>{.logits = logits, .targets = targets, .loss = label, .d_logits = {}});
    add(sums, label, {}, targets);
    arena_.release(chunk_mark);
  }
  arena_.release(mark);
  return sums;
}

}  // namespace essh
