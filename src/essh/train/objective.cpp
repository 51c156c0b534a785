#include "essh/train/objective.h"

#include <algorithm>

#include "essh/kernels/copy.h"
#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/distillation.h"
#include "essh/kernels/loss_sum.h"

namespace essh {

template <class T>
Objective<T>::Objective(const Model<T>& model, Stream& stream, Index loss_rows)
    : model_(model), stream_(stream), arena_(stream.device()), loss_rows_(loss_rows) {}

template <class T>
PlacedRows Objective<T>::place(const TokenRows& rows) {
  const auto on_device = [&](const std::vector<std::int32_t>& tokens) {
    const auto copy = arena_.vector<std::int32_t>(static_cast<Index>(tokens.size()));
    upload(stream_, tokens, copy);
    return copy;
  };
  return {.sequences = rows.sequences,
          .length = rows.length,
          .inputs = on_device(rows.inputs),
          .targets = on_device(rows.targets)};
}

template <class T>
void Objective<T>::learn(const Weights& weights, const Gradients<T>& gradients, const PlacedRows& rows,
                         Capacity capacity, const ObjectiveWeights& counts, const Teacher<T>* teacher,
                         const LearnOutputs<T>& outputs) {
  auto pass = pass_over(rows, capacity);
  pass.ffn_gradient_scale = counts.ffn_gradient;
  pass.mixer_gradient_scale = counts.mixer_gradient;
  pass.ffn_squares = outputs.squares;
  pass.layer_done = outputs.layer_done;
  const Index tokens = rows.tokens(), width = model_.config().hidden_size, vocabulary = model_.config().vocab_size;
  Matrix<T> kept;
  if (outputs.hidden) kept = arena_.matrix<T>(tokens, width);
  const auto mark = arena_.mark();
  typename Model<T>::Tape tape;
  const auto hidden = model_.forward(pass, weights, rows.inputs, &tape);
  const auto d_hidden = arena_.matrix<T>(tokens, width);
  if (outputs.hidden) {
    launch(stream_, Copy<T>{.from = hidden, .to = kept});
    *outputs.hidden = kept;
  }
  const Index piece = chunk_rows(tokens);
  for (Index first = 0; first < tokens; first += piece) {
    const auto chunk_mark = arena_.mark();
    const Index count = std::min(piece, tokens - first);
    const auto logits = arena_.matrix<T>(count, vocabulary);
    const auto label = arena_.vector<Wide<T>>(count);
    Vector<Wide<T>> divergence;
    const auto chunk_targets = rows.targets.middle(first, count);
    model_.head(pass, weights, hidden.middle(first, count), logits);
    if (teacher) {
      const auto taught = arena_.matrix<T>(count, vocabulary);
      divergence = arena_.vector<Wide<T>>(count);
      teacher->model->head(pass, *teacher->weights, teacher->hidden.middle(first, count), taught);
      launch(stream_, Distillation<T>{.logits = logits,
                                      .teacher = taught,
                                      .targets = chunk_targets,
                                      .label_loss = label,
                                      .divergence = divergence,
                                      .d_logits = logits,
                                      .label = counts.label,
                                      .kl = counts.kl,
                                      .tv = counts.tv,
                                      .scale = counts.scale});
    } else {
      launch(stream_, CrossEntropy<T>{.logits = logits,
                                      .targets = chunk_targets,
                                      .loss = label,
                                      .d_logits = logits,
                                      .scale = counts.scale * counts.label});
    }
    launch(stream_, LossSum<Wide<T>>{
                        .label = label, .divergence = divergence, .targets = chunk_targets, .totals = outputs.totals});
    model_.head_backward(pass, weights, gradients, hidden.middle(first, count), logits, d_hidden.middle(first, count));
    arena_.release(chunk_mark);
  }
  model_.backward(pass, weights, gradients, rows.inputs, tape, d_hidden);
  arena_.release(mark);
}

template <class T>
Matrix<const T> Objective<T>::observe(const Model<T>& model, const Weights& weights, const PlacedRows& rows,
                                      Capacity capacity, Matrix<double> squares) {
  auto pass = pass_over(rows, capacity);
  pass.ffn_squares = squares;
  return model.forward(pass, weights, rows.inputs, nullptr);
}

template <class T>
void Objective<T>::score(const Weights& weights, const PlacedRows& rows, Capacity capacity, Vector<double> totals) {
  const auto mark = arena_.mark();
  const auto pass = pass_over(rows, capacity);
  const auto hidden = model_.forward(pass, weights, rows.inputs, nullptr);
  const Index piece = chunk_rows(rows.tokens());
  for (Index first = 0; first < rows.tokens(); first += piece) {
    const auto chunk_mark = arena_.mark();
    const Index count = std::min(piece, rows.tokens() - first);
    const auto logits = arena_.matrix<T>(count, model_.config().vocab_size);
    const auto label = arena_.vector<Wide<T>>(count);
    const auto chunk_targets = rows.targets.middle(first, count);
    model_.head(pass, weights, hidden.middle(first, count), logits);
    launch(stream_, CrossEntropy<T>{.logits = logits, .targets = chunk_targets, .loss = label, .d_logits = {}});
    launch(stream_, LossSum<Wide<T>>{.label = label, .divergence = {}, .targets = chunk_targets, .totals = totals});
    arena_.release(chunk_mark);
  }
  arena_.release(mark);
}

template class Objective<float>;
template class Objective<BFloat16>;

}  // namespace essh
