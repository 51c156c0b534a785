#include "essh/kernels/adamw.h"
#include "essh/kernels/add_scaled.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/loss_sum.h"
#include "essh/kernels/muon.h"
#include "essh/kernels/permute.h"
#include "essh/kernels/round_weights.h"
#include "essh/kernels/running_mean.h"
#include "essh/kernels/square_sum.h"
#include "tests/kernels/cuda/twin_matrix.h"

namespace essh {
namespace {

template <class T>
std::vector<T> values_of(Vector<T> device) {
  std::vector<T> values(static_cast<std::size_t>(device.size));
  gpu().copy(values.data(), device.data, values.size() * sizeof(T));
  return values;
}

TEST(OptimizerStepCuda, AdamWAgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  // A whole number of vector loads, one element more and one less, and unaligned views.
  for (const Index size : {1, 1023, 1024, 1025, 100'000}) {
    for (const Index first : {0, 1}) {
      Rng rng(static_cast<std::uint64_t>(size));
      StridedMatrix<double> weight(1, size + first), m(1, size + first), v(1, size + first), gradient(1, size + first);
      weight.normal(rng);
      m.normal(rng, 0.1);
      v.uniform(rng, 0, 0.01);
      gradient.normal(rng, 0.1);
      const TwinMatrix<float> gpu_weight(weight), gpu_m(m), gpu_v(v), gpu_gradient(gradient);
      const Array<BFloat16> rounded(Device::Cuda, size + first, "test");
      const auto cut = [&](auto whole) { return whole.middle(first, size); };
      run(gpu(), AdamW<float>{.weight = cut(gpu_weight.vector()),
                              .first = cut(gpu_m.vector()),
                              .second = cut(gpu_v.vector()),
                              .gradient = cut(gpu_gradient.vector()),
                              .rounded = cut(rounded.view()),
                              .rate = 0.01,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .decay = 0.1,
                              .clip = 0.7,
                              .step = 3});
      run(host(), AdamW<double>{.weight = cut(weight.vector()),
                                .first = cut(m.vector()),
                                .second = cut(v.vector()),
                                .gradient = cut(gradient.vector()),
                                .rounded = {},
                                .rate = 0.01,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .eps = 1e-8,
                                .decay = 0.1,
                                .clip = 0.7,
                                .step = 3});
      gpu_weight.expect_close(weight, "weight");
      gpu_m.expect_close(m, "first moment");
      gpu_v.expect_close(v, "second moment");
      const auto weights = gpu_weight.download();
      const auto bits = values_of(rounded.view());
      for (Index i = first; i < first + size; ++i)
        ASSERT_EQ(bits[static_cast<std::size_t>(i)].bits, BFloat16(weights[static_cast<std::size_t>(i)]).bits) << i;
    }
  }
}

TEST(OptimizerStepCuda, MuonAgreesWithTheCpu) {
  ESSH_NEEDS_GPU();
  for (const Index size : {0, 1, 255, 257, 100'000}) {
    Rng rng(static_cast<std::uint64_t>(size));
    StridedMatrix<double> weight(1, size), m(1, size), gradient(1, size), direction(1, size), unit(1, size);
    weight.normal(rng);
    m.normal(rng, 0.1);
    gradient.normal(rng, 0.1);
    const TwinMatrix<float> gpu_weight(weight), gpu_m(m), gpu_gradient(gradient), gpu_direction(direction);
    const TwinMatrix<float> gpu_unit(unit);
    const Array<BFloat16> rounded(Device::Cuda, size, "test");
    const TwinVector<double> squares({6.25});
    run(gpu(), MuonMomentum<float>{gpu_m.vector(), gpu_gradient.vector(), gpu_direction.vector(), 0.95, 0.7});
    run(gpu(), MuonNormalise<float>{gpu_direction.vector(), squares.view().data, gpu_unit.vector()});
    run(gpu(), MuonUpdate<float>{gpu_weight.vector(), gpu_unit.vector(), rounded.view(), 0.02, 0.1});
    const double exact_squares = 6.25;
    run(host(), MuonMomentum<double>{m.vector(), gradient.vector(), direction.vector(), 0.95, 0.7});
    run(host(), MuonNormalise<double>{direction.vector(), &exact_squares, unit.vector()});
    run(host(), MuonUpdate<double>{weight.vector(), unit.vector(), {}, 0.02, 0.1});
    gpu_m.expect_close(m, "momentum");
    gpu_direction.expect_close(direction, "direction");
    gpu_unit.expect_close(unit, "normalised direction");
    gpu_weight.expect_close(weight, "weight");
    const auto weights = gpu_weight.download();
    const auto bits = values_of(rounded.view());
    for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(bits[i].bits, BFloat16(weights[i]).bits) << i;
    // In bf16 the direction is rounded, the weight is not.
    const Array<BFloat16> half(Device::Cuda, size, "test");
    run(gpu(), MuonNormalise<BFloat16>{gpu_direction.vector(), squares.view().data, half.view()});
    const auto halves = values_of(half.view());
    const auto units = gpu_unit.download();
    for (std::size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(halves[i].bits, BFloat16(units[i]).bits) << i;
    run(gpu(), MuonUpdate<BFloat16>{gpu_weight.vector(), half.view(), {}, 0.02, 0.1});
    const auto after = gpu_weight.download();
    for (std::size_t i = 0; i < halves.size(); ++i) {
      const double step = static_cast<double>(static_cast<float>(halves[i])), before = static_cast<double>(weights[i]);
      ASSERT_NEAR(after[i], before - 0.02 * (step + 0.1 * before), 1e-6 * std::max(1.0, std::abs(before))) << i;
    }
  }
}

TEST(OptimizerStepCuda, RoundingAndClearing) {
  ESSH_NEEDS_GPU();
  for (const Index size : {1, 4, 1027}) {
    for (const Index first : {0, 1}) {
      Rng rng(3);
      StridedMatrix<double> x(1, size + first);
      x.normal(rng);
      const TwinMatrix<float> gpu_x(x);
      const Array<BFloat16> to(Device::Cuda, size + first, "test");
      run(gpu(), RoundWeights{.from = gpu_x.vector().middle(first, size), .to = to.view(first, size)});
      const auto bits = values_of(to.view());
      const auto values = gpu_x.download();
      for (Index i = first; i < first + size; ++i)
        ASSERT_EQ(bits[static_cast<std::size_t>(i)].bits, BFloat16(values[static_cast<std::size_t>(i)]).bits);
      run(gpu(), Clear{{reinterpret_cast<std::byte*>(gpu_x.vector().data + first), size * 4}});
      const auto cleared = gpu_x.download();
      for (Index i = 0; i < first + size; ++i)
        EXPECT_EQ(cleared[static_cast<std::size_t>(i)], i < first ? values[static_cast<std::size_t>(i)] : 0.0f);
    }
  }
}

TEST(OptimizerStepCuda, ScaledSumsHaveTheBitsOfTheCpu) {
  ESSH_NEEDS_GPU();
  for (const Index size : {1, 4, 1027}) {
    for (const Index first : {0, 1}) {
      Rng rng(5);
      StridedMatrix<double> x(1, size + first), y(1, size + first);
      x.normal(rng);
      y.normal(rng);
      const TwinMatrix<float> gpu_x(x), gpu_y(y);
      const auto a = gpu_x.download(), b = gpu_y.download();
      const auto part = [&](Vector<float> whole) { return whole.middle(first, size); };
      const Array<BFloat16> to(Device::Cuda, size + first, "test");
      run(gpu(), AddScaled<BFloat16>{part(gpu_x.vector()), part(gpu_y.vector()), 0.3f, to.view(first, size)});
      run(gpu(), AddScaled<float>{part(gpu_x.vector()), part(gpu_y.vector()), 0.3f, part(gpu_x.vector())});
      const auto rounded = values_of(to.view());
      const auto sums = gpu_x.download();
      for (Index i = 0; i < first + size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float exact = i < first ? a[at] : std::fma(0.3f, b[at], a[at]);
        ASSERT_EQ(sums[at], exact) << i;
        if (i >= first) {
          ASSERT_EQ(rounded[at].bits, BFloat16(exact).bits) << i;
        }
      }
    }
  }
}

TEST(OptimizerStepCuda, SumsAgreeAndRepeatThemselves) {
  ESSH_NEEDS_GPU();
  for (const Index size : {0, 1, 3, 4, 1023, 1'000'001}) {
    for (const Index first : {0, 1, 2, 3}) {
      Rng rng(4);
      StridedMatrix<double> x(1, first + size);
      x.normal(rng);
      const TwinMatrix<float> gpu_x(x);
      const TwinVector<double> sums({2, 2});
      for (const Index i : {0, 1})
        run(gpu(), SquareSum<float>{.x = gpu_x.vector().middle(first, size), .sum = sums.view().data + i});
      double exact = 2;
      run(host(), SquareSum<double>{.x = {x.view.data + first, size}, .sum = &exact});
      const auto found = values_of(sums.view());
      EXPECT_NEAR(found[0], exact, 1e-6 * exact);
      EXPECT_EQ(found[0], found[1]);
    }
  }
}

TEST(OptimizerStepCuda, LossesAreSummed) {
  ESSH_NEEDS_GPU();
  for (const Index rows : {1, 511, 512, 2000}) {
    Rng rng(5);
    StridedMatrix<double> label(1, rows), divergence(1, rows);
    label.uniform(rng, 0, 9);
    divergence.uniform(rng, 0, 1);
    std::vector<std::int32_t> targets;
    for (Index r = 0; r < rows; ++r) targets.push_back(r % 5 == 2 ? kIgnoredTarget : 7);
    const TwinMatrix<float> gpu_label(label), gpu_divergence(divergence);
    const TwinVector<std::int32_t> gpu_targets(targets);
    const TwinVector<double> totals({1, 2, 3});
    std::vector<double> exact = {1, 2, 3};
    run(gpu(), LossSum<float>{gpu_label.vector(), gpu_divergence.vector(), gpu_targets.view(), totals.view()});
    run(gpu(), LossSum<float>{gpu_label.vector(), {}, gpu_targets.view(), totals.view()});
    run(host(), LossSum<double>{label.vector(), divergence.vector(), {targets.data(), rows}, {exact.data(), 3}});
    run(host(), LossSum<double>{label.vector(), {}, {targets.data(), rows}, {exact.data(), 3}});
    const auto found = values_of(totals.view());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], exact[i], 1e-9 * exact[i]) << i;
  }
}

TEST(OptimizerStepCuda, UnitsMoveWhereTheOrderSays) {
  ESSH_NEEDS_GPU();
  const Index rows = 300, cols = 77;
  Rng rng(6);
  StridedMatrix<double> from(rows, cols), by_rows(rows, cols), by_columns(rows, cols);
  from.normal(rng);
  std::vector<std::int32_t> row_order, column_order;
  for (Index r = 0; r < rows; ++r) row_order.push_back(static_cast<std::int32_t>(r * 7 % rows));
  for (Index c = 0; c < cols; ++c) column_order.push_back(static_cast<std::int32_t>(c * 5 % cols));
  const TwinMatrix<float> gpu_from(from), gpu_rows(by_rows), gpu_columns(by_columns);
  const TwinVector<std::int32_t> gpu_row_order(row_order), gpu_column_order(column_order);
  run(gpu(), PermuteRows<float>{gpu_from.view(), gpu_row_order.view(), gpu_rows.view()});
  run(gpu(), PermuteColumns<float>{gpu_from.view(), gpu_column_order.view(), gpu_columns.view()});
  run(host(), PermuteRows<double>{from.view, {row_order.data(), rows}, by_rows.view});
  run(host(), PermuteColumns<double>{from.view, {column_order.data(), cols}, by_columns.view});
  gpu_rows.expect_close(by_rows, "rows", 0);
  gpu_columns.expect_close(by_columns, "columns", 0);
}

TEST(OptimizerStepCuda, RunningMeanIsTheCpus) {
  ESSH_NEEDS_GPU();
  const std::vector<double> sums = {4, 8, 1e9}, before = {1, 0, 3};
  auto exact = before;
  const TwinVector<double> gpu_sums(sums), gpu_mean(before);
  run(gpu(), RunningMean{.sums = gpu_sums.view(), .mean = gpu_mean.view(), .memory = 0.95, .count = 16});
  run(host(), RunningMean{.sums = {sums.data(), 3}, .mean = {exact.data(), 3}, .memory = 0.95, .count = 16});
  const auto found = values_of(gpu_mean.view());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(found[i], exact[i], 1e-14 * exact[i]);
}

}  // namespace
}  // namespace essh
