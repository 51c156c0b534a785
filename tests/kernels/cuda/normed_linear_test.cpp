#include "essh/kernels/normed_linear.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

constexpr double kEps = 1e-5;

// A product adds to a residual, whose norm is the input of two more products, with weights one behind the other.
// Returns whether the first product was run and began the norm.
template <class T, class X>
bool check_normed(Index rows, Index outputs, Index width, Index inner, Index gap) {
  if (!next_case()) return false;
  Rng rng(53);
  StridedMatrix<double> x(rows, inner, gap), first(width, inner, gap), residual(rows, width, gap),
      normed(rows, width, gap), gain(1, width), squares(NextNorm<T>::kMostParts, rows), weight(2 * outputs, width, gap),
      y(rows, 2 * outputs, gap), hidden(rows, outputs, gap);
  x.normal(rng);
  first.normal(rng, 1 / std::sqrt(static_cast<double>(inner)));
  residual.normal(rng);
  // Rows of different sizes, and gains of both signs.
  for (Index r = 0; r < rows; ++r) {
    const double size = std::exp2(static_cast<double>(r % 11 - 5));
    for (Index c = 0; c < inner; ++c) x.view(r, c) *= size;
    for (Index c = 0; c < width; ++c) residual.view(r, c) *= size;
  }
  gain.normal(rng);
  weight.normal(rng, 2 / std::sqrt(static_cast<double>(width)));
  const TwinMatrix<X> gpu_residual(residual);
  const TwinMatrix<T> gpu_x(x), gpu_first(first), gpu_normed(normed), gpu_weight(weight), gpu_y(y), gpu_hidden(hidden);
  const TwinMatrix<float> gpu_gain(gain), gpu_squares(squares);
  const std::vector<Weight> firsts{first.view}, gpu_firsts{gpu_first.view()}, weights{weight.view},
      gpu_weights{gpu_weight.view()};

  NextNorm<T> next{.gain = gpu_gain.vector(), .y = gpu_normed.view(), .squares = gpu_squares.view()};
  Linear<T, X> add{
      .x = gpu_x.view(), .weights = gpu_firsts, .y = gpu_residual.view(), .scale = 0.5, .addend = gpu_residual.view()};
  if constexpr (std::is_same_v<T, X>) add.next = &next;
  run(gpu(), add);
  run(host(),
      Linear<double>{.x = x.view, .weights = firsts, .y = residual.view, .scale = 0.5, .addend = residual.view});

  const RmsNormForward<double> norm{
      .x = residual.view, .gain = gain.vector(), .y = normed.view, .inverse_rms = {}, .eps = kEps};
  const RmsNormForward<T, X> gpu_norm{
      .x = gpu_residual.view(), .gain = gpu_gain.vector(), .y = gpu_normed.view(), .inverse_rms = {}, .eps = kEps};
  const Linear<double> linear{.x = normed.view, .weights = weights, .y = y.view};
  const Linear<T> gpu_linear{.x = gpu_normed.view(), .weights = gpu_weights, .y = gpu_y.view()};
  const double bound = std::max(kTwinTolerance<T>, 1e-5);
  run(gpu(), NormedLinear<T, X>{.norm = gpu_norm, .linear = gpu_linear, .begun = next});
  run(host(), NormedLinear<double>{.norm = norm, .linear = linear});
  gpu_y.expect_close(y, "linear", 2, bound);
  // If the norm had to be computed whole, its place holds the result now.
  run(gpu(), NormedGatedLinear<T, X>{
                 .norm = gpu_norm, .gated = {.both = gpu_linear, .hidden = gpu_hidden.view()}, .begun = next});
  run(host(), NormedGatedLinear<double>{.norm = norm, .gated = {.both = linear, .hidden = hidden.view}});
  gpu_hidden.expect_close(hidden, "gated", 3, bound);
  return next.parts > 0;
}

// Of which checks the norm was begun.
template <class T, class X>
int check_sizes() {
  int begun = 0;
  for (const Index rows : {1, 9, 16, 64, 65, 100, 128, 129})
    for (const auto& [outputs, width] : {std::pair<Index, Index>{352, 512}, {96, 192}, {100, 320}, {44, 72}})
      for (const Index gap : {0, 8, 3}) begun += check_normed<T, X>(rows, outputs, width, 192, gap);
  // Inputs that do not fit in shared memory together.
  for (const Index rows : {16, 77, 128})
    for (const auto& [width, inner] : {std::pair<Index, Index>{2048, 192}, {256, 5632}})
      begun += check_normed<T, X>(rows, 704, width, inner, 0);
  return begun;
}

template <class Types>
class NormedLinearCuda : public ::testing::Test {};
TYPED_TEST_SUITE(NormedLinearCuda, TwinResidualTypes);

TYPED_TEST(NormedLinearCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  const int begun = check_sizes<typename TypeParam::Compute, typename TypeParam::Residual>();
  // Rows 1 to 128, without a gap and with one of 8; and the last six.
  if (sizeof(typename TypeParam::Residual) == 2 && gpu().architecture() == 90 && every_nth_case() == 1) {
    EXPECT_EQ(begun, 7 * 4 * 2 + 6);
  }
}
TYPED_TEST(NormedLinearCuda, LibraryProductsAgreeWithTheCpu) {
  ESSH_NEEDS_GPU();
  const WithoutOwnProducts theirs;
  EXPECT_EQ((check_sizes<typename TypeParam::Compute, typename TypeParam::Residual>()), 0);
}

}  // namespace
}  // namespace essh
