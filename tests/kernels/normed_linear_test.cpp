#include "essh/kernels/normed_linear.h"

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class NormedLinearCpu : public ::testing::Test {};
TYPED_TEST_SUITE(NormedLinearCpu, FloatTypes);

// Has the bits of a norm and a product one after the other.
TYPED_TEST(NormedLinearCpu, IsANormAndAProduct) {
  using T = TypeParam;
  cpu::Stream stream(2);
  constexpr Index kRows = 5, kInner = 19, kOutputs = 12;
  Rng rng(49);
  StridedMatrix<T> x(kRows, kInner), gain(1, kInner), weight(kOutputs, kInner), normed(kRows, kInner),
      y(kRows, kOutputs), other(kRows, kOutputs), hidden(kRows, kOutputs / 2), other_hidden(kRows, kOutputs / 2);
  x.normal(rng);
  gain.normal(rng);
  weight.normal(rng, 0.5);
  const std::vector<Weight> weights{weight.view};
  const RmsNormForward<T> norm{.x = x.view, .gain = gain.vector(), .y = normed.view, .inverse_rms = {}, .eps = 1e-5};
  const Linear<T> linear{.x = normed.view, .weights = weights, .y = y.view};
  run(stream, norm);
  run(stream, Linear<T>{.x = normed.view, .weights = weights, .y = other.view});
  run(stream, NormedLinear<T>{.norm = norm, .linear = linear});
  EXPECT_EQ(std::memcmp(y.view.data, other.view.data, sizeof(T) * kRows * static_cast<std::size_t>(y.view.stride)), 0);
  run(stream, GatedLinear<T>{.both = linear, .hidden = other_hidden.view});
  normed.normal(rng);
  run(stream, NormedGatedLinear<T>{.norm = norm, .gated = {.both = linear, .hidden = hidden.view}});
  for (Index r = 0; r < kRows; ++r) {
    for (Index c = 0; c < kOutputs / 2; ++c) EXPECT_EQ(hidden.view(r, c), other_hidden.view(r, c));
  }
}

}  // namespace
}  // namespace essh
