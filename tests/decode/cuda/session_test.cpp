#include "essh/decode/session.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/small_model.h"

namespace essh {
namespace {

StoredModel make_family() {
  auto config = small_config();
  config.vocab_size = 64;
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3, 0.3);
  // Weights exact in bf16, so that both precisions compute the same function.
  for (std::size_t i = 0; i < model.parameters.layout().tensors().size(); ++i) {
    if (!model.parameters.layout().tensors()[i].is_matrix()) continue;
    for (auto& x : model.parameters.tensor(i)) x = static_cast<float>(BFloat16(x));
  }
  return StoredModel(std::move(model), "a");
}

// Relative to the norm of all logits: a logit near zero may lose all its digits in bf16.
double distance(std::span<const float> x, std::span<const float> exact) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    apart += std::pow(static_cast<double>(x[i]) - static_cast<double>(exact[i]), 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  return std::sqrt(apart / size);
}

// Single tokens (the later ones from a graph) agree with the CPU to rounding and with the cut model bit by bit; a
// prompt cut at any place agrees to rounding.
TEST(SessionCuda, DecodesLikeTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const auto& [precision, tolerance] : {std::pair{Precision::Float32, 2e-5}, {Precision::BFloat16, 6e-2}}) {
    auto cpu = cpu_stream(1);
    Stream gpu(std::make_unique<cuda::Stream>());
    Engine exact(make_family(), cpu), engine(make_family(), gpu, {.precision = precision});
    for (const char* tier : {"full", "2x4"}) {
      SCOPED_TRACE(::testing::Message() << tier << ", within " << tolerance);
      const auto tokens = random_tokens(200, 64, 5);
      const auto at = find_tier(engine.config(), tier);
      Session here(exact, at), there(engine, at), split(engine, at);
      Engine cut(engine.model().cut(at.capacity), gpu, {.precision = precision});
      Session alone(cut, at);
      here.feed(std::span(tokens).first(70));
      there.feed(std::span(tokens).first(70));
      alone.feed(std::span(tokens).first(70));
      EXPECT_LE(distance(there.logits(), here.logits()), tolerance);
      for (std::size_t i = 70; i < tokens.size(); ++i) {
        here.feed({&tokens[i], 1});
        there.feed({&tokens[i], 1});
        alone.feed({&tokens[i], 1});
        ASSERT_LE(distance(there.logits(), here.logits()), tolerance) << "token " << i;
        ASSERT_TRUE(std::ranges::equal(there.logits(), alone.logits())) << "token " << i;
      }
      split.feed(std::span(tokens).first(1));
      split.feed(std::span(tokens).subspan(1, 130));
      split.feed(std::span(tokens).subspan(131));
      EXPECT_LE(distance(split.logits(), here.logits()), tolerance);
    }
  }
}

}  // namespace
}  // namespace essh
