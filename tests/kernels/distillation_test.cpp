#include "essh/kernels/distillation.h"

#include <gtest/gtest.h>

#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/reference/dual.h"
#include "tests/kernels/random_matrix.h"

namespace essh {
namespace {

using reference::Dual;

std::vector<Dual> softmax(const std::vector<Dual>& logits) {
  Dual total = 0;
  std::vector<Dual> p;
  for (const auto& x : logits) total += exp(x);
  for (const auto& x : logits) p.push_back(exp(x) / total);
  return p;
}

// label CE + kl KL(t || p) + tv TV(t, p) from the definitions.
Dual objective(const std::vector<Dual>& student, const std::vector<Dual>& teacher, std::size_t target, double label,
               double kl, double tv) {
  const auto p = softmax(student), t = softmax(teacher);
  Dual sum = Dual(-label) * log(p[target]);
  for (std::size_t c = 0; c < p.size(); ++c) {
    sum += Dual(kl) * t[c] * (log(t[c]) - log(p[c]));
    const Dual gap = p[c] - t[c];
    sum += Dual(tv / 2) * (gap < Dual(0) ? -gap : gap);
  }
  return sum;
}

class DistillationLoss : public ::testing::TestWithParam<std::tuple<double, double, double>> {};

TEST_P(DistillationLoss, ValueAndGradientFollowTheDefinition) {
  const auto [label, kl, tv] = GetParam();
  constexpr Index kRows = 5, kVocabulary = 9;
  Rng rng(3);
  StridedMatrix<double> logits(kRows, kVocabulary), teacher(kRows, kVocabulary), gradient(kRows, kVocabulary);
  logits.normal(rng, 2);
  teacher.normal(rng, 2);
  const std::vector<std::int32_t> targets = {0, 8, kIgnoredTarget, 3, 3};
  std::vector<double> losses(kRows), divergences(kRows);
  cpu::Stream stream(2);
  run(stream, Distillation<double>{.logits = logits.view,
                                   .teacher = teacher.view,
                                   .targets = {targets.data(), kRows},
                                   .label_loss = {losses.data(), kRows},
                                   .divergence = {divergences.data(), kRows},
                                   .d_logits = gradient.view,
                                   .label = label,
                                   .kl = kl,
                                   .tv = tv,
                                   .scale = 0.25});
  for (Index r = 0; r < kRows; ++r) {
    const auto target = targets[static_cast<std::size_t>(r)];
    if (target == kIgnoredTarget) {
      EXPECT_EQ(losses[static_cast<std::size_t>(r)], 0);
      for (Index c = 0; c < kVocabulary; ++c) EXPECT_EQ(gradient.view(r, c), 0);
      continue;
    }
    const std::vector<Dual> fixed(teacher.view.row(r), teacher.view.row(r) + kVocabulary);
    for (Index c = 0; c < kVocabulary; ++c) {
      std::vector<Dual> student(logits.view.row(r), logits.view.row(r) + kVocabulary);
      student[static_cast<std::size_t>(c)].slope = 1;
      const auto exact = objective(student, fixed, static_cast<std::size_t>(target), label, kl, tv);
      EXPECT_NEAR(gradient.view(r, c), 0.25 * exact.slope, 1e-13);
      if (c > 0) continue;
      const double weight = kl != 0 ? kl : tv;
      EXPECT_NEAR(label * losses[static_cast<std::size_t>(r)] + weight * divergences[static_cast<std::size_t>(r)],
                  exact.value, 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, DistillationLoss,
                         ::testing::Values(std::tuple{1.0, 0.5, 0.0}, std::tuple{1.0, 0.0, 5.0},
                                           std::tuple{1.5, 0.0, 0.0}));

TEST(DistillationLoss, EqualDistributionsPullNowhere) {
  Rng rng(3);
  StridedMatrix<float> logits(3, 100), gradient(3, 100);
  logits.normal(rng, 3);
  const std::vector<std::int32_t> targets = {0, 1, 2};
  std::vector<float> losses(3), divergences(3);
  cpu::Stream stream(1);
  for (const auto& [kl, tv] : {std::pair{1.0, 0.0}, std::pair{0.0, 1.0}}) {
    run(stream, Distillation<float>{.logits = logits.view,
                                    .teacher = logits.view,
                                    .targets = {targets.data(), 3},
                                    .label_loss = {losses.data(), 3},
                                    .divergence = {divergences.data(), 3},
                                    .d_logits = gradient.view,
                                    .label = 0,
                                    .kl = kl,
                                    .tv = tv});
    for (Index r = 0; r < 3; ++r) {
      EXPECT_NEAR(divergences[static_cast<std::size_t>(r)], 0, 1e-6);
      for (Index c = 0; c < 100; ++c) EXPECT_EQ(gradient.view(r, c), 0);
    }
  }
}

}  // namespace
}  // namespace essh
