#include "essh/kernels/cross_entropy.h"
#include "essh/kernels/distillation.h"
#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
class LossesCuda : public ::testing::Test {};
TYPED_TEST_SUITE(LossesCuda, TwinTypes);

std::vector<std::int32_t> some_targets(Index rows, Index vocabulary) {
  std::vector<std::int32_t> targets;
  for (Index r = 0; r < rows; ++r)
    targets.push_back(r % 5 == 2 ? kIgnoredTarget : static_cast<std::int32_t>(r * 7919 % vocabulary));
  return targets;
}

TYPED_TEST(LossesCuda, CrossEntropyAgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const Index vocabulary : {3, 1000, 50304}) {
    Rng rng(10);
    const Index rows = 17;
    StridedMatrix<double> logits(rows, vocabulary, vocabulary % 8), loss(1, rows, 0);
    logits.normal(rng, 4, 30);
    const auto targets = some_targets(rows, vocabulary);
    const TwinMatrix<T> gpu_logits(logits);
    const TwinMatrix<float> gpu_loss(loss);
    const TwinVector<std::int32_t> gpu_targets(targets);
    run(gpu(), CrossEntropy<T>{gpu_logits.view(), gpu_targets.view(), gpu_loss.vector(), gpu_logits.view(), 0.25});
    run(host(), CrossEntropy<double>{logits.view, {targets.data(), rows}, loss.vector(), logits.view, 0.25});
    gpu_loss.expect_close(loss, "loss", 4);
    gpu_logits.expect_close(logits, "d_logits", 4);
  }
}

TYPED_TEST(LossesCuda, DistillationAgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  using T = TypeParam;
  for (const bool variation : {false, true}) {
    for (const Index vocabulary : {3, 1000, 50304}) {
      Rng rng(11);
      const Index rows = 17;
      StridedMatrix<double> logits(rows, vocabulary, vocabulary % 8), teacher(rows, vocabulary, vocabulary % 8),
          label(1, rows, 0), divergence(1, rows, 0);
      logits.normal(rng, 3);
      teacher.normal(rng, 3);
      const auto targets = some_targets(rows, vocabulary);
      const TwinMatrix<T> gpu_logits(logits), gpu_teacher(teacher);
      const TwinMatrix<float> gpu_label(label), gpu_divergence(divergence);
      const TwinVector<std::int32_t> gpu_targets(targets);
      const double kl = variation ? 0 : 0.7, tv = variation ? 5 : 0;
      run(gpu(), Distillation<T>{gpu_logits.view(), gpu_teacher.view(), gpu_targets.view(), gpu_label.vector(),
                                 gpu_divergence.vector(), gpu_logits.view(), 1, kl, tv, 0.5});
      run(host(), Distillation<double>{logits.view,
                                       teacher.view,
                                       {targets.data(), rows},
                                       label.vector(),
                                       divergence.vector(),
                                       logits.view,
                                       1,
                                       kl,
                                       tv,
                                       0.5});
      gpu_label.expect_close(label, "label loss", 4);
      gpu_divergence.expect_close(divergence, "divergence", 8);
      gpu_logits.expect_close(logits, "d_logits", 8);
    }
  }
}

}  // namespace
}  // namespace essh
