#include "essh/kernels/muon.h"

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class MuonTest : public ::testing::Test {};
TYPED_TEST_SUITE(MuonTest, FloatTypes);

TYPED_TEST(MuonTest, MomentumFollowsItsEquationsOverSteps) {
  using W = TypeParam;
  Rng rng(1);
  cpu::Stream stream(2);
  for (const Index size : {0, 1, 7, 8, 9, 4099}) {
    StridedMatrix<W> momentum(1, size), gradient(1, size), direction(1, size);
    std::vector<double> exact(static_cast<std::size_t>(size));
    for (int t = 0; t < 4; ++t) {
      gradient.normal(rng, 0.1);
      run(stream, MuonMomentum<W>{.momentum = momentum.vector(),
                                  .gradient = gradient.vector(),
                                  .direction = direction.vector(),
                                  .beta = 0.95,
                                  .clip = 0.7});
      for (Index i = 0; i < size; ++i) {
        auto& m = exact[static_cast<std::size_t>(i)];
        const double g = 0.7 * static_cast<double>(gradient.view(0, i));
        m = 0.95 * m + 0.05 * g;
        expect_close(momentum.view(0, i), m, "momentum");
        expect_close(direction.view(0, i), 0.95 * m + 0.05 * g, "direction");
      }
    }
    EXPECT_TRUE(momentum.gap_is_intact() && direction.gap_is_intact());
  }
}

TYPED_TEST(MuonTest, NormalisesAndLeavesZeroAlone) {
  using W = TypeParam;
  Rng rng(2);
  cpu::Stream stream(2);
  for (const Index size : {1, 9, 4099}) {
    StridedMatrix<W> from(1, size), to(1, size);
    from.normal(rng);
    for (const double squares : {0.0, 1e-30, 6.25}) {
      run(stream, MuonNormalise<W>{.from = from.vector(), .squares = &squares, .to = to.vector()});
      for (Index i = 0; i < size; ++i)
        expect_close(to.view(0, i), squares > 0 ? static_cast<double>(from.view(0, i)) / std::sqrt(squares) : 0, "to");
    }
    EXPECT_TRUE(to.gap_is_intact());
  }
}

TYPED_TEST(MuonTest, UpdatesDecayAndRound) {
  using W = TypeParam;
  Rng rng(3);
  cpu::Stream stream(2);
  for (const Index size : {0, 1, 9, 4099}) {
    for (const bool rounds : {false, true}) {
      StridedMatrix<W> weight(1, size), direction(1, size);
      weight.normal(rng);
      direction.normal(rng);
      const StridedMatrix<W> before = weight;
      std::vector<BFloat16> rounded(static_cast<std::size_t>(size));
      run(stream, MuonUpdate<W>{.weight = weight.vector(),
                                .direction = direction.vector(),
                                .rounded = rounds ? Vector<BFloat16>{rounded.data(), size} : Vector<BFloat16>{},
                                .rate = 0.02,
                                .decay = 0.1});
      for (Index i = 0; i < size; ++i) {
        const auto w = static_cast<double>(before.view(0, i)), step = static_cast<double>(direction.view(0, i));
        expect_close(weight.view(0, i), w - 0.02 * (step + 0.1 * w), "weight");
        if (rounds) {
          EXPECT_EQ(rounded[static_cast<std::size_t>(i)].bits, BFloat16(static_cast<float>(weight.view(0, i))).bits);
        }
      }
      EXPECT_TRUE(weight.gap_is_intact());
    }
  }
}

}  // namespace
}  // namespace essh
