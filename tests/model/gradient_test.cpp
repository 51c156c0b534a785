#include <gtest/gtest.h>

#include "essh/kernels/cross_entropy.h"
#include "tests/model/reference_model.h"
#include "tests/model/small_model.h"

namespace essh {
namespace {

using reference::Dual;
using reference::ReferenceModel;

struct LossAndGradient {
  double loss = 0;
  std::vector<double> gradient;
};

LossAndGradient evaluate(const Model<double>& model, const Parameters<double>& parameters, Capacity capacity,
                         const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                         double ffn_scale = 1, double mixer_scale = 1) {
  auto stream = cpu_stream(2);
  Arena arena(Device::Cpu);
  const auto rows = static_cast<Index>(tokens.size());
  const Pass pass{.stream = stream,
                  .arena = arena,
                  .capacity = capacity,
                  .sequences = 1,
                  .length = rows,
                  .ffn_gradient_scale = ffn_scale,
                  .mixer_gradient_scale = mixer_scale};
  const Vector<const std::int32_t> ids{tokens.data(), rows};
  Model<double>::Tape tape;
  const auto hidden = model.forward(pass, parameters.weights(), ids, &tape);
  const auto logits = arena.matrix<double>(rows, model.config().vocab_size),
             d_hidden = arena.matrix<double>(rows, model.config().hidden_size);
  const auto losses = arena.vector<double>(rows);
  model.head(pass, parameters.weights(), hidden, logits);
  launch(stream, CrossEntropy<double>{.logits = logits,
                                      .targets = {targets.data(), rows},
                                      .loss = losses,
                                      .d_logits = logits,
                                      .scale = 1.0 / static_cast<double>(rows)});
  LossAndGradient result;
  for (Index r = 0; r < rows; ++r) result.loss += losses[r] / static_cast<double>(rows);
  result.gradient.assign(static_cast<std::size_t>(model.layout().size()), 0.0);
  const Gradients<double> gradients{&model.layout(), result.gradient.data()};
  model.head_backward(pass, parameters.weights(), gradients, hidden, logits, d_hidden);
  model.backward(pass, parameters.weights(), gradients, ids, tape, d_hidden);
  return result;
}

struct Case {
  ModelConfig (*config)();
  Capacity capacity;
};
class ModelGradient : public ::testing::TestWithParam<Case> {};

// The loss and the gradient of every parameter of the whole model, at full capacity and at strided prefixes.
TEST_P(ModelGradient, AgreesWithDualNumbersAndDifferences) {
  const auto capacity = GetParam().capacity;
  const auto config = GetParam().config();
  const Model<double> model(config);
  Parameters<double> parameters(config);
  fill_randomly(parameters, 7);
  const auto tokens = random_tokens(67, config.vocab_size, 1), targets = random_tokens(67, config.vocab_size, 2);
  const auto result = evaluate(model, parameters, capacity, tokens, targets);

  std::vector<Dual> values(parameters.data(), parameters.data() + model.layout().size());
  ReferenceModel<Dual> exact(config, model.layout(), capacity, values);
  ReferenceModel<double> plain(config, model.layout(), capacity,
                               {parameters.data(), parameters.data() + model.layout().size()});
  EXPECT_NEAR(result.loss, plain.loss(tokens, targets), 1e-13);
  const auto& tensors = model.layout().tensors();
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const auto& spec = tensors[tensor];
    for (Index r = 0; r < spec.rows; ++r) {
      for (Index c = 0; c < spec.cols; ++c) {
        const auto element = static_cast<std::size_t>(model.layout().offset(tensor) + r * spec.cols + c);
        if (r >= spec.kept_rows(capacity) || c >= spec.kept_cols(capacity)) {
          EXPECT_EQ(result.gradient[element], 0.0) << spec.name << " outside the capacity";
          continue;
        }
        exact.value(element).slope = 1;
        const double slope = exact.loss(tokens, targets).slope;
        exact.value(element).slope = 0;
        EXPECT_NEAR(result.gradient[element], slope, 1e-12) << spec.name << " " << r << " " << c;
        if ((r + c) % 5 != 0) continue;
        constexpr double kStep = 1e-5;
        const double at = plain.value(element);
        plain.value(element) = at + kStep;
        double difference = plain.loss(tokens, targets);
        plain.value(element) = at - kStep;
        difference -= plain.loss(tokens, targets);
        plain.value(element) = at;
        EXPECT_NEAR(result.gradient[element], difference / (2 * kStep), 1e-8) << spec.name << " " << r << " " << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Capacities, ModelGradient,
                         ::testing::Values(Case{small_config, {3, 7}}, Case{small_config, {2, 4}},
                                           Case{small_transformer, {3, 7}}, Case{small_transformer, {2, 4}}));

TEST(ModelGradient, ScalesTouchEveryParameterOfTheirModuleAndNoOther) {
  const auto config = small_config();
  const Model<double> model(config);
  Parameters<double> parameters(config);
  fill_randomly(parameters, 5);
  const auto tokens = random_tokens(20, config.vocab_size, 1), targets = random_tokens(20, config.vocab_size, 2);
  const auto whole = evaluate(model, parameters, {2, 4}, tokens, targets);
  for (const auto& [ffn, mixer] : {std::pair{0.5, 1.0}, {1.0, 0.3}, {0.5, 0.5}, {1.0, 0.0}}) {
    const auto scaled = evaluate(model, parameters, {2, 4}, tokens, targets, ffn, mixer);
    for (std::size_t tensor = 0; tensor < model.layout().tensors().size(); ++tensor) {
      const auto& spec = model.layout().tensors()[tensor];
      const auto in = [&](const char* part) { return spec.name.find(part) != std::string::npos; };
      const double factor = in(".mlp.") ? ffn : in(".mixer.") ? mixer : 1;
      for (Index i = 0; i < spec.rows * spec.cols; ++i) {
        const auto element = static_cast<std::size_t>(model.layout().offset(tensor) + i);
        EXPECT_NEAR(scaled.gradient[element], factor * whole.gradient[element], 1e-15) << spec.name;
      }
    }
  }
}

}  // namespace
}  // namespace essh
