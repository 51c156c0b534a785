#include "essh/kernels/gated_linear.h"

#include "essh/kernels/reference/swiglu.h"
#include "tests/kernels/kernel_checks.h"

namespace essh {
namespace {

template <class T>
class GatedLinearCpu : public ::testing::Test {};
TYPED_TEST_SUITE(GatedLinearCpu, FloatTypes);

// One weight with the gates above, or two; units beyond those kept are zero, also where they overwrite the gates.
TYPED_TEST(GatedLinearCpu, AgreesWithTheDefinition) {
  using T = TypeParam;
  cpu::Stream stream(2);
  constexpr Index kInner = 19;
  for (const Index rows : {1, 5, 40}) {
    for (const Index units : {1, 33}) {
      for (const bool stacked : {false, true}) {
        Rng rng(48);
        StridedMatrix<T> x(rows, kInner), weight(2 * units, kInner), both(rows, 2 * units);
        x.normal(rng);
        weight.normal(rng, 0.5);
        std::vector<Weight> weights{weight.view};
        if (!stacked) weights = {weight.view.top(units), weight.view.middle(units, units)};
        std::vector<std::int32_t> kept;
        for (Index r = 0; r < rows; ++r) kept.push_back(static_cast<std::int32_t>((r * 7) % (units + 1)));
        const auto hidden = both.view.left(units);
        run(stream, GatedLinear<T>{.both = {.x = x.view, .weights = weights, .y = both.view},
                                   .hidden = hidden,
                                   .kept = {kept.data(), rows}});
        EXPECT_TRUE(both.gap_is_intact());
        for (Index r = 0; r < rows; ++r) {
          for (Index c = 0; c < units; ++c) {
            double gate = 0, up = 0;
            for (Index k = 0; k < kInner; ++k) {
              gate += static_cast<double>(x.view(r, k)) * static_cast<double>(weight.view(c, k));
              up += static_cast<double>(x.view(r, k)) * static_cast<double>(weight.view(units + c, k));
            }
            const bool is_kept = c < kept[static_cast<std::size_t>(r)];
            expect_close(hidden(r, c), is_kept ? reference::swiglu(gate, up) : 0.0, "hidden");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace essh
