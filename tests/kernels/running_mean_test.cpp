#include "essh/kernels/running_mean.h"

#include "essh/kernels/clear.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

TEST(RunningMean, ForgetsAtTheGivenRate) {
  cpu::Stream stream(2);
  for (const Index size : {0, 1, 5, 1000}) {
    StridedMatrix<double> sums(1, size), mean(1, size);
    Rng rng(static_cast<std::uint64_t>(size));
    sums.uniform(rng, 0, 100);
    mean.uniform(rng, 0, 1);
    const StridedMatrix<double> before(mean);
    run(stream, RunningMean{.sums = sums.vector(), .mean = mean.vector(), .memory = 0.95, .count = 40});
    for (Index i = 0; i < size; ++i)
      EXPECT_NEAR(mean.view(0, i), 0.95 * before.view(0, i) + 0.05 * sums.view(0, i) / 40, 1e-14);
    // With memory 0 the old mean is not used, whatever it is.
    run(stream, RunningMean{.sums = sums.vector(), .mean = mean.vector(), .memory = 0, .count = 40});
    for (Index i = 0; i < size; ++i) EXPECT_EQ(mean.view(0, i), sums.view(0, i) / 40);
  }
}

TEST(Clear, LeavesZerosAndItsNeighboursAlone) {
  auto stream = cpu_stream(2);
  for (const Index size : {0, 1, 3, 1001}) {
    std::vector<float> x(static_cast<std::size_t>(size + 2), 7);
    clear(stream, Vector<float>{x.data() + 1, size});
    EXPECT_EQ(x.front(), 7);
    EXPECT_EQ(x.back(), 7);
    for (Index i = 1; i <= size; ++i) EXPECT_EQ(x[static_cast<std::size_t>(i)], 0);
  }
}

}  // namespace
}  // namespace essh
