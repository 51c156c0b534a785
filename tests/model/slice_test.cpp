#include "essh/model/slice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/small_model.h"

namespace essh {
namespace {

TEST(Slice, AFamilyWithoutSlopesIsCutInPlace) {
  auto config = small_config();
  Parameters<float> parameters(config);
  const auto whole = parameters.weights(), part = slice(config, whole, {.channels = 2, .ffn = 4});
  ASSERT_EQ(part.tensors.size(), whole.tensors.size());
  for (std::size_t i = 0; i < part.tensors.size(); ++i) EXPECT_EQ(part[i].data, whole[i].data);
}

// Tensors and slopes of different formats, as a file may have them.
TEST(Slice, SumsWithSlopesKeepTheFormatOfTheWeight) {
  auto config = small_config();
  config.elastic.slopes = true;
  Parameters<float> parameters(config);
  fill_randomly(parameters, 3);
  const auto& layout = parameters.layout();
  auto weights = parameters.weights();
  std::vector<std::vector<BFloat16>> rounded;
  const auto round = [&](std::size_t tensor) {
    const auto values = parameters.tensor(tensor);
    rounded.emplace_back(values.begin(), values.end());
    const auto& spec = layout.tensors()[tensor];
    weights.tensors[tensor] = Weight(Format::BF16, rounded.back().data(), spec.rows, spec.cols);
  };
  const auto gate = layout.find(0, "mlp.gate_proj.weight"), down = layout.find(0, "mlp.down_proj.weight");
  const auto down_slope = layout.find(0, "mlp.down_proj.weight.slope");
  round(gate);
  round(down_slope);
  const Capacity capacity{.channels = 2, .ffn = 4};
  const auto sliced = slice(config, weights, capacity);
  const auto small = slice(config, capacity);
  EXPECT_FALSE(small.elastic.slopes);
  const ParameterLayout small_layout(small);
  ASSERT_EQ(sliced.tensors.size(), small_layout.tensors().size());
  const auto share = static_cast<float>(slope_share(config, capacity));
  const auto gates = sliced.table<BFloat16>(small_layout.find(0, "mlp.gate_proj.weight"));
  const auto gate_slopes = weights.table<float>(layout.find(0, "mlp.gate_proj.weight.slope"));
  ASSERT_EQ(gates.rows, 4);
  for (Index r = 0; r < gates.rows; ++r) {
    for (Index c = 0; c < gates.cols; ++c)
      ASSERT_EQ(
          gates(r, c).bits,
          BFloat16(std::fma(share, gate_slopes(r, c), static_cast<float>(weights.table<BFloat16>(gate)(r, c)))).bits);
  }
  const auto downs = sliced.table<float>(small_layout.find(0, "mlp.down_proj.weight"));
  const auto down_slopes = weights.table<BFloat16>(down_slope);
  ASSERT_EQ(downs.cols, 4);
  for (Index r = 0; r < downs.rows; ++r) {
    for (Index c = 0; c < downs.cols; ++c)
      ASSERT_EQ(downs(r, c), std::fma(share, static_cast<float>(down_slopes(r, c)), weights.table<float>(down)(r, c)));
  }
  const auto full = slice(config, weights, full_capacity(config));
  ASSERT_EQ(full.tensors.size(), layout.tensors().size() / 2) << "no slopes";
  EXPECT_EQ(full[ParameterLayout(slice(config, full_capacity(config))).find(0, "mlp.gate_proj.weight")].data,
            rounded[0].data())
      << "in place";
}

}  // namespace
}  // namespace essh
