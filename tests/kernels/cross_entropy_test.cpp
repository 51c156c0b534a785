#include "essh/kernels/cross_entropy.h"

#include "essh/kernels/reference/cross_entropy.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

using reference::Dual;

template <class T>
class CrossEntropyTest : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropyTest, FloatTypes);

std::vector<std::int32_t> targets_of(Index rows, Index vocabulary) {
  std::vector<std::int32_t> targets;
  for (Index r = 0; r < rows; ++r)
    targets.push_back(r % 3 == 1 ? kIgnoredTarget : static_cast<std::int32_t>((r * 7 + 2) % vocabulary));
  return targets;
}

Vector<const std::int32_t> view(const std::vector<std::int32_t>& targets) {
  return {targets.data(), static_cast<Index>(targets.size())};
}

TYPED_TEST(CrossEntropyTest, LossAndGradientAgreeWithDualNumbers) {
  using T = TypeParam;
  cpu::Stream stream(2);
  const double scale = 0.25;
  for (const Index rows : {0, 1, 5}) {
    for (const Index vocabulary : {1, 12, 67, 130}) {
      Rng rng(10);
      StridedMatrix<T> logits(rows, vocabulary), d_logits(rows, vocabulary), loss(1, rows), loss_alone(1, rows);
      logits.normal(rng, 3);
      const auto targets = targets_of(rows, vocabulary);
      run(stream, CrossEntropy<T>{logits.view, view(targets), loss.vector(), d_logits.view, scale});
      run(stream, CrossEntropy<T>{logits.view, view(targets), loss_alone.vector(), {}});
      EXPECT_TRUE(d_logits.gap_is_intact() && loss.gap_is_intact());
      for (Index r = 0; r < rows; ++r) {
        const auto target = targets[static_cast<std::size_t>(r)];
        EXPECT_EQ(loss.view(0, r), loss_alone.view(0, r));
        if (target == kIgnoredTarget) {
          EXPECT_EQ(loss.view(0, r), T(0));
          for (Index c = 0; c < vocabulary; ++c) EXPECT_EQ(d_logits.view(r, c), T(0));
          continue;
        }
        auto dual = logits.template row<Dual>(r);
        const auto objective = [&] {
          return Dual(scale) * reference::cross_entropy(dual, static_cast<std::size_t>(target));
        };
        expect_close(loss.view(0, r), objective().value / scale, "loss");
        for (Index c = 0; c < vocabulary; ++c)
          expect_gradient(d_logits.view(r, c), dual[static_cast<std::size_t>(c)], objective, "logits");
      }
      run(stream, CrossEntropy<T>{logits.view, view(targets), loss.vector(), logits.view, scale});
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < vocabulary; ++c) EXPECT_EQ(logits.view(r, c), d_logits.view(r, c)) << "in place";
      }
    }
  }
}

TYPED_TEST(CrossEntropyTest, HugeLogitsNeitherOverflowNorVanish) {
  using T = TypeParam;
  cpu::Stream stream(1);
  StridedMatrix<T> logits(3, 40), d_logits(3, 40), loss(1, 3);
  const double huge = 1e30;
  logits.fill([] { return -1e30; });
  logits.view(0, 5) = T(huge);                          // certain and right
  logits.view(1, 5) = T(huge);                          // certain and wrong
  const std::vector<std::int32_t> targets = {5, 6, 0};  // the last row is uniform
  run(stream, CrossEntropy<T>{logits.view, view(targets), loss.vector(), d_logits.view});
  EXPECT_EQ(loss.view(0, 0), T(0));
  EXPECT_EQ(d_logits.view(0, 5), T(0));
  EXPECT_NEAR(static_cast<double>(loss.view(0, 1)) / huge, 2.0, 1e-6);
  EXPECT_EQ(d_logits.view(1, 5), T(1));
  EXPECT_EQ(d_logits.view(1, 6), T(-1));
  expect_close(d_logits.view(2, 1), 1.0 / 40, "uniform");
  // log 40 vanishes beside a logit of 1e30; the loss must stay finite.
  EXPECT_TRUE(std::isfinite(static_cast<double>(loss.view(0, 2))));
}

TYPED_TEST(CrossEntropyTest, ANanLogitShowsInTheLoss) {
  using T = TypeParam;
  cpu::Stream stream(1);
  for (const Index at : {0, 3, 21, 39}) {
    StridedMatrix<T> logits(1, 40), loss(1, 1);
    logits.view(0, at) = T(NAN);
    const std::vector<std::int32_t> targets = {7};
    run(stream, CrossEntropy<T>{logits.view, view(targets), loss.vector(), {}});
    EXPECT_TRUE(std::isnan(loss.view(0, 0))) << at;
  }
}

TYPED_TEST(CrossEntropyTest, BitsDoNotDependOnTheTeam) {
  using T = TypeParam;
  expect_same_bits_for_any_team([](cpu::Stream& stream) {
    Rng rng(14);
    StridedMatrix<T> logits(17, 301), loss(1, 17);
    logits.normal(rng);
    const auto targets = targets_of(17, 301);
    run(stream, CrossEntropy<T>{logits.view, view(targets), loss.vector(), logits.view});
    return std::vector{logits, loss};
  });
}

}  // namespace
}  // namespace essh
