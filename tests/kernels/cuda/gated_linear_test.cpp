#include "essh/kernels/gated_linear.h"

#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

// Agrees with the CPU for weights that lie one behind the other as one matrix, or apart; `in_place`: the units
// overwrite the gates, like in the model.
template <class T>
void check_gated(Index rows, Index units, Index inner, Index gap, bool stacked, bool in_place, bool all_kept) {
  if (!next_case()) return;
  Rng rng(47);
  StridedMatrix<double> x(rows, inner, gap), stored(2 * units, inner, gap), both(rows, 2 * units, gap),
      hidden(rows, units, gap);
  x.normal(rng);
  stored.normal(rng, 2 / std::sqrt(static_cast<double>(inner)));
  const TwinMatrix<T> gpu_x(x), gpu_stored(stored), gpu_both(both), gpu_hidden(hidden);
  std::vector<std::int32_t> kept;
  for (Index r = 0; r < rows && !all_kept; ++r) kept.push_back(static_cast<std::int32_t>((r * 37) % (units + 1)));
  const TwinVector<std::int32_t> gpu_kept(kept.empty() ? std::vector<std::int32_t>{0} : kept);
  std::vector<Weight> weights, gpu_weights;
  if (stacked) {
    weights = {stored.view};
    gpu_weights = {gpu_stored.view()};
  } else {
    weights = {stored.view.top(units), stored.view.middle(units, units)};
    gpu_weights = {gpu_stored.view().top(units), gpu_stored.view().middle(units, units)};
  }
  const auto gpu_to = in_place ? gpu_both.view().left(units) : gpu_hidden.view();
  run(gpu(), GatedLinear<T>{.both = {.x = gpu_x.view(), .weights = gpu_weights, .y = gpu_both.view()},
                            .hidden = gpu_to,
                            .kept = all_kept ? Vector<const std::int32_t>{} : gpu_kept.view()});
  run(host(), GatedLinear<double>{
                  .both = {.x = x.view, .weights = weights, .y = both.view},
                  .hidden = hidden.view,
                  .kept = all_kept ? Vector<const std::int32_t>{} : Vector<const std::int32_t>{kept.data(), rows}});
  const auto values = (in_place ? gpu_both : gpu_hidden).download();
  double largest = 1e-3, gap_seen = 0;
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < units; ++c) {
      const auto value =
          static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(r * gpu_to.stride + c)]));
      if (!all_kept && c >= kept[static_cast<std::size_t>(r)]) {
        ASSERT_EQ(value, 0) << r << ", " << c;
      }
      largest = std::max(largest, std::abs(hidden.view(r, c)));
      gap_seen = std::isfinite(value) ? std::max(gap_seen, std::abs(value - hidden.view(r, c))) : INFINITY;
    }
  }
  EXPECT_LE(gap_seen, 2 * std::max(kTwinTolerance<T>, 1e-5) * largest)
      << rows << " rows, " << units << " units, " << inner << " inputs, gap " << gap;
}

template <class T>
void check_sizes() {
  for (const Index rows : {1, 9, 64, 65, 128, 129})
    for (const Index gap : {0, 8, 3})
      for (const bool stacked : {false, true})
        for (const bool in_place : {false, true})
          for (const bool all_kept : {false, true}) check_gated<T>(rows, 100, 192, gap, stacked, in_place, all_kept);
  for (const Index rows : {2, 16, 77, 128})
    for (const auto& [units, inner] : {std::pair<Index, Index>{704, 1024}, {1408, 512}, {129, 130}})
      check_gated<T>(rows, units, inner, 0, true, true, rows != 16);
}

template <class T>
class GatedLinearCuda : public ::testing::Test {};
TYPED_TEST_SUITE(GatedLinearCuda, TwinTypes);

TYPED_TEST(GatedLinearCuda, AgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  check_sizes<TypeParam>();
}
TYPED_TEST(GatedLinearCuda, LibraryProductsAgreeWithTheCpu) {
  ESSH_NEEDS_GPU();
  const WithoutOwnProducts theirs;
  check_sizes<TypeParam>();
}

}  // namespace
}  // namespace essh
