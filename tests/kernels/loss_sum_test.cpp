#include "essh/kernels/loss_sum.h"

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class LossSumTest : public ::testing::Test {};
TYPED_TEST_SUITE(LossSumTest, FloatTypes);

TYPED_TEST(LossSumTest, AddsLossesAndCountsTargets) {
  using W = TypeParam;
  Rng rng(1);
  cpu::Stream stream(2);
  for (const Index rows : {0, 1, 7, 1025}) {
    StridedMatrix<W> label(1, rows), divergence(1, rows);
    label.uniform(rng, 0, 9);
    divergence.uniform(rng, 0, 1);
    std::vector<std::int32_t> targets;
    double labels = 0, divergences = 0, count = 0;
    for (Index r = 0; r < rows; ++r) {
      targets.push_back(r % 3 == 1 ? kIgnoredTarget : static_cast<std::int32_t>(r));
      labels += static_cast<double>(label.view(0, r));
      divergences += static_cast<double>(divergence.view(0, r));
      count += r % 3 != 1;
    }
    std::vector<double> totals = {1, 2, 3};
    const Vector<const std::int32_t> known{targets.data(), rows};
    run(stream, LossSum<W>{.label = label.vector(), .divergence = {}, .targets = known, .totals = {totals.data(), 3}});
    EXPECT_NEAR(totals[0], 1 + labels, 1e-9);
    EXPECT_EQ(totals[1], 2);
    EXPECT_EQ(totals[2], 3 + count);
    run(stream, LossSum<W>{.label = label.vector(),
                           .divergence = divergence.vector(),
                           .targets = known,
                           .totals = {totals.data(), 3}});
    EXPECT_NEAR(totals[0], 1 + 2 * labels, 1e-9);
    EXPECT_NEAR(totals[1], 2 + divergences, 1e-9);
    EXPECT_EQ(totals[2], 3 + 2 * count);
  }
}

}  // namespace
}  // namespace essh
