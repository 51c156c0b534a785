#include "essh/train/ordering.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/small_model.h"

namespace essh {
namespace {

std::vector<double> logits_of(const Parameters<double>& parameters, const ModelConfig& config) {
  const Model<double> model(config);
  auto stream = cpu_stream(1);
  Arena arena(Device::Cpu);
  const auto tokens = random_tokens(30, config.vocab_size, 3);
  const Pass pass{.stream = stream, .arena = arena, .capacity = full_capacity(config), .sequences = 1, .length = 30};
  const auto hidden = model.forward(pass, parameters.weights(), {tokens.data(), 30}, nullptr);
  std::vector<double> logits(static_cast<std::size_t>(30 * config.vocab_size));
  model.head(pass, parameters.weights(), hidden, dense(logits.data(), 30, config.vocab_size));
  return logits;
}

TEST(Ordering, KeepsTheFunctionAndMovesEverythingOfAUnit) {
  const auto config = small_config();
  Parameters<float> parameters(config);
  fill_randomly(parameters, 8);
  const auto size = static_cast<std::size_t>(parameters.layout().size());
  // Each companion holds the original index of every element.
  std::vector<float> first(size), second(size);
  for (std::size_t i = 0; i < size; ++i) {
    first[i] = static_cast<float>(i);
    second[i] = -static_cast<float>(i);
  }
  std::vector<double> squares(static_cast<std::size_t>(config.num_hidden_layers * config.intermediate_size));
  Rng rng(4);
  for (auto& s : squares) s = rng.uniform();
  const std::vector<float> before(parameters.data(), parameters.data() + size);
  const auto squares_before = squares;

  const auto in_double = [&] {
    Parameters<double> wide(config);
    std::copy_n(parameters.data(), size, wide.data());
    return logits_of(wide, config);
  };
  const auto logits_before = in_double();
  auto stream = cpu_stream(2);
  Arena arena(Device::Cpu);
  const auto& layout = parameters.layout();
  const auto by_layer = dense(squares.data(), config.num_hidden_layers, config.intermediate_size);
  const auto order = importance_order(stream, arena, layout, {parameters.data(), layout.size()}, by_layer);
  for (float* values : {parameters.data(), first.data(), second.data()})
    order_units(stream, arena, layout, order, {values, layout.size()});
  order_units(order, by_layer);
  const auto logits_after = in_double();
  for (std::size_t i = 0; i < logits_before.size(); ++i) EXPECT_NEAR(logits_after[i], logits_before[i], 1e-12);

  std::size_t moved = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const auto from = static_cast<std::size_t>(first[i]);
    EXPECT_EQ(parameters.data()[i], before[from]) << "weights and first moment moved apart";
    EXPECT_EQ(second[i], -first[i]) << "the moments moved apart";
    moved += from != i;
  }
  EXPECT_GT(moved, 0u);
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto gate = parameters.layout().find(layer, "mlp.gate_proj.weight"),
               down = parameters.layout().find(layer, "mlp.down_proj.weight");
    double previous = INFINITY;
    for (Index unit = 0; unit < config.intermediate_size; ++unit) {
      // The original index of the unit from its gate row; its statistics and its column of down must move with it.
      const auto place = static_cast<std::size_t>(parameters.layout().offset(gate) + unit * config.hidden_size);
      const Index old = (static_cast<Index>(first[place]) - parameters.layout().offset(gate)) / config.hidden_size;
      const auto at = static_cast<std::size_t>(layer * config.intermediate_size);
      EXPECT_EQ(squares[at + static_cast<std::size_t>(unit)], squares_before[at + static_cast<std::size_t>(old)]);
      double norm = 0;
      for (Index r = 0; r < config.hidden_size; ++r) {
        const auto element =
            static_cast<std::size_t>(parameters.layout().offset(down) + r * config.intermediate_size + unit);
        EXPECT_EQ(static_cast<Index>(first[element]),
                  parameters.layout().offset(down) + r * config.intermediate_size + old);
        norm += std::pow(static_cast<double>(parameters.data()[element]), 2);
      }
      const double importance = norm * squares[at + static_cast<std::size_t>(unit)];
      EXPECT_LE(importance, previous);
      previous = importance;
    }
  }
}

}  // namespace
}  // namespace essh
