#include "essh/train/classifier.h"

#include <array>
#include <cmath>

#include "essh/base/rng.h"
#include "essh/kernels/adamw.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/gemm.h"
#include "essh/kernels/square_sum.h"

namespace essh {
namespace {

constexpr std::uint64_t kHeadStream = 0x6865616421ULL;

template <class T>
Vector<const T> on_device(Stream& stream, Arena& arena, const std::vector<T>& values) {
  const auto copy = arena.vector<T>(static_cast<Index>(values.size()));
  upload(stream, values, copy);
  return copy;
}

}  // namespace

Classifier::Classifier(const ModelConfig& config, const Parameters<float>& weights, const ClassifierOptions& options,
                       Stream& stream)
    : options_(options),
      stream_(stream),
      model_(config),
      group_(comm::make_single_group()),
      shards_(model_.layout(), *group_, stream),
      weights_(model_.layout(), stream),
      gradient_(stream.device(), model_.layout().size(), "gradients"),
      optimizer_(make_optimizer(model_, options.optimizer, DecayGroups::Pretraining,
                                std::vector<bool>(model_.layout().tensors().size()), shards_, stream)),
      head_(stream.device(), options.classes * config.hidden_size, "the head"),
      head_gradient_(stream.device(), head_.size(), "the head"),
      head_first_(stream.device(), head_.size(), "the head"),
      head_second_(stream.device(), head_.size(), "the head"),
      squares_(stream.device(), 1, "losses"),
      arena_(stream.device()) {
  weights_.set({weights.data(), static_cast<std::size_t>(weights.layout().size())});
  Rng rng(options.seed, kHeadStream);
  std::vector<float> initial(static_cast<std::size_t>(head_.size()));
  for (auto& value : initial) value = static_cast<float>(0.02 * rng.normal());
  upload(stream, initial, head_.view());
  clear(stream, head_first_.view());
  clear(stream, head_second_.view());
}

Matrix<const float> Classifier::pooling_of(const LabelledRows& rows) {
  const Index tokens = rows.sequences * rows.length;
  std::vector<float> weights(static_cast<std::size_t>(rows.sequences * tokens));
  for (Index s = 0; s < rows.sequences; ++s) {
    const Index length = rows.lengths[static_cast<std::size_t>(s)];
    float* const row = weights.data() + s * tokens + s * rows.length;
    if (options_.pooling == Pooling::Last)
      row[length - 1] = 1;
    else
      std::fill_n(row, length, 1 / static_cast<float>(length));
  }
  return dense(on_device(stream_, arena_, weights).data, rows.sequences, tokens);
}

Classifier::Step Classifier::learn(const LabelledRows& rows, double rate) {
  const Index width = model_.config().hidden_size, tokens = rows.sequences * rows.length;
  const auto pass = pass_over(rows);
  arena_.release();
  clear(stream_, gradient_.view());
  clear(stream_, squares_.view());
  const auto inputs = on_device(stream_, arena_, rows.inputs), labels = on_device(stream_, arena_, rows.labels);
  const auto pooling = pooling_of(rows);
  Model<float>::Tape tape;
  const auto hidden = model_.forward(pass, weights_.weights(), inputs, &tape);
  const auto pooled = arena_.matrix<float>(rows.sequences, width);
  const auto d_pooled = arena_.matrix<float>(rows.sequences, width);
  const auto scores = arena_.matrix<float>(rows.sequences, options_.classes);
  const auto losses = arena_.vector<float>(rows.sequences);
  const auto d_hidden = arena_.matrix<float>(tokens, width);
  launch(stream_, Gemm<float>{.a = pooling, .b = hidden, .c = pooled});
  launch(stream_, Gemm<float>{.a = pooled, .b = head(), .c = scores, .transpose_b = Transpose::Yes});
  launch(stream_, CrossEntropy<float>{.logits = scores,
                                      .targets = labels,
                                      .loss = losses,
                                      .d_logits = scores,
                                      .scale = 1.0 / static_cast<double>(rows.sequences)});
  launch(stream_, Gemm<float>{.a = scores,
                              .b = pooled,
                              .c = dense(head_gradient_.data(), options_.classes, width),
                              .transpose_a = Transpose::Yes});
  launch(stream_, Gemm<float>{.a = scores, .b = head(), .c = d_pooled});
  launch(stream_, Gemm<float>{.a = pooling, .b = d_pooled, .c = d_hidden, .transpose_a = Transpose::Yes});
  model_.backward(pass, weights_.weights(), {&model_.layout(), gradient_.data()}, inputs, tape, d_hidden);

  optimizer_->add_squares(gradient_.view(), squares_.data());
  launch(stream_, SquareSum<float>{.x = head_gradient_.view(), .sum = squares_.data()});
  std::array<double, 1> squares;
  download(stream_, squares_.view(), squares);
  std::vector<float> by_row(static_cast<std::size_t>(rows.sequences));
  download(stream_, losses, by_row);
  Step step{.norm = std::sqrt(squares[0])};
  for (const float loss : by_row) step.loss += static_cast<double>(loss) / static_cast<double>(rows.sequences);
  if (!std::isfinite(step.norm))
    fail(ErrorKind::Usage, "fine-tuning: the gradient of step {} is not finite; use a lower rate",
         optimizer_->steps() + 1);

  const auto& o = options_.optimizer;
  const double clip = clip_factor(step.norm, o.clip);
  optimizer_->step(arena_, weights_.values(), {}, gradient_.view(), rate, clip);
  launch(stream_, AdamW<float>{.weight = head_.view(),
                               .first = head_first_.view(),
                               .second = head_second_.view(),
                               .gradient = head_gradient_.view(),
                               .rounded = {},
                               .rate = rate,
                               .beta1 = o.beta1,
                               .beta2 = o.beta2,
                               .eps = o.eps,
                               .decay = o.weight_decay,
                               .clip = clip,
                               .step = optimizer_->steps()});
  return step;
}

std::vector<float> Classifier::logits(const LabelledRows& rows) {
  arena_.release();
  const auto inputs = on_device(stream_, arena_, rows.inputs);
  const auto pooling = pooling_of(rows);
  const auto pooled = arena_.matrix<float>(rows.sequences, model_.config().hidden_size);
  const auto scores = arena_.matrix<float>(rows.sequences, options_.classes);
  const auto hidden = model_.forward(pass_over(rows), weights_.weights(), inputs, nullptr);
  launch(stream_, Gemm<float>{.a = pooling, .b = hidden, .c = pooled});
  launch(stream_, Gemm<float>{.a = pooled, .b = head(), .c = scores, .transpose_b = Transpose::Yes});
  std::vector<float> found(static_cast<std::size_t>(rows.sequences * options_.classes));
  download(stream_, Vector<const float>{scores.data, scores.rows * scores.cols}, found);
  return found;
}

}  // namespace essh
