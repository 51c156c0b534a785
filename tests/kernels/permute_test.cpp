#include "essh/kernels/permute.h"

#include <numeric>

#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class PermuteTest : public ::testing::Test {};
TYPED_TEST_SUITE(PermuteTest, FloatTypes);

std::vector<std::int32_t> shuffled(Index count, Rng& rng) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

TYPED_TEST(PermuteTest, RowsAndColumnsComeFromWhereTheOrderSays) {
  using W = TypeParam;
  Rng rng(1);
  cpu::Stream stream(2);
  for (const auto& [rows, cols] : {std::pair<Index, Index>{0, 3}, {1, 1}, {5, 7}, {130, 33}}) {
    StridedMatrix<W> from(rows, cols), by_rows(rows, cols, 5), by_columns(rows, cols, 2);
    from.normal(rng);
    const auto row_order = shuffled(rows, rng), column_order = shuffled(cols, rng);
    run(stream, PermuteRows<W>{.from = from.view, .order = {row_order.data(), rows}, .to = by_rows.view});
    run(stream, PermuteColumns<W>{.from = from.view, .order = {column_order.data(), cols}, .to = by_columns.view});
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < cols; ++c) {
        EXPECT_EQ(by_rows.view(r, c), from.view(row_order[static_cast<std::size_t>(r)], c));
        EXPECT_EQ(by_columns.view(r, c), from.view(r, column_order[static_cast<std::size_t>(c)]));
      }
    }
    EXPECT_TRUE(by_rows.gap_is_intact() && by_columns.gap_is_intact());
  }
}

}  // namespace
}  // namespace essh
