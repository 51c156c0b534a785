#include "essh/kernels/linear.h"

#include <array>

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

enum class Addend { None, Other, Itself };

// Agrees with the CPU, for one weight or several, separate or contiguous.
template <class T, class Out>
void check_linear(Index rows, std::span<const Index> outputs, Index inner, Addend kind, Index gap, RowBits bits) {
  Rng rng(41);
  Index all = 0;
  for (const Index count : outputs) all += count;
  StridedMatrix<double> x(rows, inner, gap), stored(all, inner, gap), y(rows, all, gap), addend(rows, all, gap);
  x.normal(rng);
  stored.normal(rng);
  y.normal(rng);
  addend.normal(rng);
  const TwinMatrix<T> gpu_x(x), gpu_stored(stored);
  const TwinMatrix<Out> gpu_y(y), gpu_addend(addend);
  std::vector<Weight> weights, gpu_weights;
  for (Index n = 0; const Index count : outputs) {
    weights.emplace_back(stored.view.middle(n, count));
    gpu_weights.emplace_back(gpu_stored.view().middle(n, count));
    n += count;
  }
  const auto start = [&](auto other, auto itself) {
    return kind == Addend::None ? decltype(other){} : kind == Addend::Other ? other : itself;
  };
  run(gpu(), Linear<T, Out>{gpu_x.view(), gpu_weights, gpu_y.view(), 0.5,
                            start(Matrix<const Out>(gpu_addend.view()), Matrix<const Out>(gpu_y.view())), bits});
  run(host(), Linear<double>{x.view, weights, y.view, 0.5,
                             start(Matrix<const double>(addend.view), Matrix<const double>(y.view))});
  gpu_y.expect_close(y, "y", 1, std::max(kTwinTolerance<Out>, 1e-5));
}

TEST(LinearCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  const Index one[] = {128}, several[] = {24, 64, 7};
  for (const Index rows : {0, 1, 64, 65, 200}) {
    for (const std::span<const Index> outputs : {std::span<const Index>(one), std::span<const Index>(several)}) {
      for (const Index inner : {64, 130}) {
        for (const Addend kind : {Addend::None, Addend::Other, Addend::Itself}) {
          for (const Index gap : {0, 8, 3}) {
            for (const RowBits bits : {RowBits::Free, RowBits::Ranged, RowBits::Alone}) {
              if (next_case()) check_linear<float, float>(rows, outputs, inner, kind, gap, bits);
              if (next_case()) check_linear<BFloat16, BFloat16>(rows, outputs, inner, kind, gap, bits);
              if (next_case()) check_linear<BFloat16, float>(rows, outputs, inner, kind, gap, bits);
            }
          }
        }
      }
    }
  }
}

// Sizes of decoding steps.
TEST(LinearCuda, FewRowsAgreeWithTheCpu) {
  ESSH_NEEDS_GPU();
  for (const auto [outputs, inner] :
       {std::array<Index, 2>{704, 512}, {512, 1408}, {1536, 512}, {88, 64}, {2240, 128}, {4288, 128}, {6144, 72}}) {
    for (const Index rows : {1, 8, 9, 16, 31, 64, 65, 100, 128}) {
      const Index all[] = {outputs};
      for (const Addend kind : {Addend::None, Addend::Itself}) {
        if (next_case()) check_linear<BFloat16, BFloat16>(rows, all, inner, kind, 0, RowBits::Free);
        if (next_case()) check_linear<BFloat16, float>(rows, all, inner, kind, 0, RowBits::Free);
      }
    }
  }
}

// With RowBits::Alone a row has the same bits alone and in any batch, at any index.
template <class T, class Out>
void check_alone(Index inner, Index outputs, bool adds, Index gap) {
  constexpr Index kMost = 200;
  Rng rng(42);
  StridedMatrix<double> x(kMost, inner, gap), weight(outputs, inner, gap), y(kMost, outputs, gap),
      addend(kMost, outputs, gap);
  x.normal(rng);
  weight.normal(rng);
  addend.normal(rng);
  const TwinMatrix<T> gpu_x(x), gpu_weight(weight);
  const TwinMatrix<Out> gpu_addend(addend);
  // Two weights, separate or contiguous, depending on the gap.
  const Weight weights[] = {gpu_weight.view().top(outputs / 2),
                            gpu_weight.view().middle(outputs / 2, outputs - outputs / 2)};
  const auto multiply = [&](Index first, Index rows, Matrix<Out> to) {
    const auto start = adds ? Matrix<const Out>(gpu_addend.view().middle(first, rows)) : Matrix<const Out>();
    run(gpu(),
        Linear<T, Out>{gpu_x.view().middle(first, rows), weights, to.middle(first, rows), 0.3, start, RowBits::Alone});
  };
  const TwinMatrix<Out> expected(y);
  for (Index r = 0; r < kMost; ++r) multiply(r, 1, expected.view());
  const auto one = expected.download();
  for (const Index rows : {2, 63, 64, 65, 200}) {
    for (const Index first : {Index{0}, std::min<Index>(3, kMost - rows), kMost - rows}) {
      const TwinMatrix<Out> result(y);
      multiply(first, rows, result.view());
      const auto many = result.download();
      for (Index r = first; r < first + rows; ++r) {
        const auto at = static_cast<std::size_t>(r * result.view().stride);
        ASSERT_EQ(std::memcmp(one.data() + at, many.data() + at, static_cast<std::size_t>(outputs) * sizeof(Out)), 0)
            << "row " << r - first << " of " << rows << ", " << inner << " inputs, " << outputs << " outputs, gap "
            << gap;
      }
    }
  }
}

TEST(LinearCuda, AloneARowHasTheSameBitsInAnyCompany) {
  ESSH_NEEDS_GPU();
  for (const auto [inner, outputs] : {std::array<Index, 2>{256, 384}, {896, 1024}, {130, 70}}) {
    for (const bool adds : {false, true}) {
      for (const Index gap : {0, 8, 3}) {
        if (next_case()) check_alone<float, float>(inner, outputs, adds, gap);
        if (next_case()) check_alone<BFloat16, BFloat16>(inner, outputs, adds, gap);
        if (next_case()) check_alone<BFloat16, float>(inner, outputs, adds, gap);
      }
    }
  }
}

// Few rows are not tuned for; more are once for all numbers up to a power of two. Every number gives the product.
TEST(LinearCuda, RangesOfRowsShareAnAlgorithm) {
  ESSH_NEEDS_GPU();
  const Index outputs[] = {72};  // of no other test
  const auto tuned_by = [&](Index rows, RowBits bits) {
    const auto before = gpu().choices().size();
    check_linear<BFloat16, BFloat16>(rows, outputs, 96, Addend::None, 0, bits);
    return gpu().choices().size() - before;
  };
  for (const Index rows : {1, 15, 225, 512}) EXPECT_EQ(tuned_by(rows, RowBits::Ranged), 0u) << rows;
  EXPECT_EQ(tuned_by(513, RowBits::Ranged), 1u);
  for (const Index rows : {514, 777, 1000, 1024}) EXPECT_EQ(tuned_by(rows, RowBits::Ranged), 0u) << rows;
  EXPECT_EQ(tuned_by(1025, RowBits::Ranged), 1u);
  for (const Index rows : {15, 777}) EXPECT_EQ(tuned_by(rows, RowBits::Free), 1u) << rows;
}

// Recorded after two launches, like decoding does.
TEST(LinearCuda, CanBeRecorded) {
  ESSH_NEEDS_GPU();
  Rng rng(43);
  StridedMatrix<double> x(5, 256, 0), weight(384, 256, 0), y(5, 384, 0);
  x.normal(rng);
  weight.normal(rng);
  const TwinMatrix<BFloat16> gpu_x(x), gpu_weight(weight), eager(y), replayed(y);
  const Weight weights[] = {gpu_weight.view()};
  const auto multiply = [&](Matrix<BFloat16> to) {
    run(gpu(), Linear<BFloat16>{.x = gpu_x.view(), .weights = weights, .y = to, .bits = RowBits::Alone});
  };
  multiply(eager.view());
  multiply(eager.view());
  const cuda::Graph graph(gpu(), [&] { multiply(replayed.view()); });
  graph.replay(gpu());
  const auto one = eager.download(), two = replayed.download();
  EXPECT_EQ(std::memcmp(one.data(), two.data(), one.size() * sizeof(BFloat16)), 0);
}

TEST(LinearCuda, RefusesAnotherFormat) {
  ESSH_NEEDS_GPU();
  StridedMatrix<double> x(1, 8, 0);
  const TwinMatrix<BFloat16> gpu_x(x);
  const TwinMatrix<BFloat16> y(x);
  const Weight weights[] = {Weight(Format::F16, gpu_x.view().data, 8, 8)};
  try {
    run(gpu(), Linear<BFloat16>{.x = gpu_x.view(), .weights = weights, .y = y.view()});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
  }
}

}  // namespace
}  // namespace essh
