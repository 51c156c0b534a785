#include "essh/train/classifier.h"

#include <gtest/gtest.h>

#include <cmath>

#include "essh/base/rng.h"
#include "essh/model/initialise.h"

namespace essh {
namespace {

ModelConfig classifier_config() {
  auto c = preset("dna");
  c.hidden_size = 16;
  c.intermediate_size = 64;
  c.num_hidden_layers = 2;
  c.spectral_channels = 4;
  c.channel_width = 4;
  c.elastic = {};
  return c;
}

Parameters<float> initial(const ModelConfig& config) {
  Parameters<float> p(config);
  initialise(p, config, 3);
  return p;
}

// Class 1 has more tokens 8 than tokens 7.
LabelledRows draw(Rng& rng, Index sequences, Index length) {
  LabelledRows rows{.sequences = sequences, .length = length};
  for (Index s = 0; s < sequences; ++s) {
    const Index own = 3 + static_cast<Index>(rng.below(static_cast<std::uint64_t>(length - 2)));
    const auto label = static_cast<std::int32_t>(rng.below(2));
    for (Index t = 0; t < length; ++t) {
      const bool likely = rng.uniform() < 0.85;
      rows.inputs.push_back(t < own ? 7 + (likely ? label : 1 - label) : 10);
    }
    rows.lengths.push_back(own);
    rows.labels.push_back(label);
  }
  return rows;
}

double loss_of(Classifier& classifier, const LabelledRows& rows, Index classes) {
  const auto logits = classifier.logits(rows);
  double sum = 0;
  for (Index s = 0; s < rows.sequences; ++s) {
    const float* row = logits.data() + s * classes;
    double all = 0;
    for (Index c = 0; c < classes; ++c) all += std::exp(static_cast<double>(row[c]));
    sum += std::log(all) - static_cast<double>(row[rows.labels[static_cast<std::size_t>(s)]]);
  }
  return sum / static_cast<double>(rows.sequences);
}

// With betas 0 and a huge eps, AdamW is gradient descent at rate / eps. Per unit of that rate the loss must fall by the
// squared norm of the gradient.
TEST(Classifier, GradientIsThatOfTheLoss) {
  const auto config = classifier_config();
  for (const auto pooling : {Pooling::Mean, Pooling::Last}) {
    auto stream = cpu_stream(1);
    constexpr double kEps = 1e6;
    Classifier classifier(config, initial(config),
                          {.classes = 3,
                           .pooling = pooling,
                           .optimizer = {.beta1 = 0, .beta2 = 0, .eps = kEps, .weight_decay = 0, .clip = 0},
                           .seed = 1},
                          stream);
    Rng rng(5);
    const auto rows = draw(rng, 6, 20);
    // Ten steps first: the initial head is small, and so are the gradients of the model.
    for (int i = 0; i < 10; ++i) classifier.learn(rows, 0.2 * kEps);
    const double before = loss_of(classifier, rows, 3);
    const auto here = classifier.learn(rows, 0);
    EXPECT_NEAR(here.loss, before, 1e-5);
    constexpr double kFall = 1e-3;
    classifier.learn(rows, kEps * kFall / (here.norm * here.norm));
    EXPECT_NEAR(before - loss_of(classifier, rows, 3), kFall, 0.03 * kFall);
  }
}

TEST(Classifier, PaddingDoesNotMatter) {
  const auto config = classifier_config();
  auto stream = cpu_stream(1);
  for (const auto pooling : {Pooling::Mean, Pooling::Last}) {
    Classifier classifier(config, initial(config), {.classes = 2, .pooling = pooling, .seed = 1}, stream);
    Rng rng(6);
    const auto rows = draw(rng, 5, 33);
    const auto together = classifier.logits(rows);
    for (Index s = 0; s < rows.sequences; ++s) {
      const Index own = rows.lengths[static_cast<std::size_t>(s)];
      const auto begin = rows.inputs.begin() + s * rows.length;
      const auto alone = classifier.logits(
          {.sequences = 1, .length = own, .inputs = {begin, begin + own}, .lengths = {own}, .labels = {0}});
      for (std::size_t c = 0; c < 2; ++c) EXPECT_NEAR(alone[c], together[static_cast<std::size_t>(s) * 2 + c], 1e-5);
    }
  }
}

TEST(Classifier, LearnsAClassOfUnseenSequences) {
  const auto config = classifier_config();
  auto stream = cpu_stream(1);
  Classifier classifier(config, initial(config), {.classes = 2, .seed = 1}, stream);
  Rng rng(7);
  for (int i = 0; i < 60; ++i) classifier.learn(draw(rng, 16, 24), 3e-3);
  const auto rows = draw(rng, 200, 24);
  const auto logits = classifier.logits(rows);
  int right = 0;
  for (std::size_t s = 0; s < 200; ++s) right += (logits[2 * s + 1] > logits[2 * s]) == (rows.labels[s] == 1);
  EXPECT_GT(right, 185);
}

}  // namespace
}  // namespace essh
