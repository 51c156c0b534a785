#include "essh/decode/session.h"

#include <gtest/gtest.h>

#include "tests/model/small_model.h"

namespace essh {
namespace {

Runner make_runner(Precision precision) {
  auto config = small_config();
  config.vocab_size = 64;
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3, 0.3);
  return Runner(std::move(model), "a", precision);
}

double distance(std::span<const float> x, std::span<const float> y) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    worst = std::max(worst,
                     static_cast<double>(std::abs(x[i] - y[i])) / std::max(1.0, std::abs(static_cast<double>(y[i]))));
  return worst;
}

// Token by token, the later ones by a recorded graph, against the CPU; and prompts split anyhow.
TEST(SessionCuda, DecodesLikeTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const auto& [precision, tolerance] : {std::pair{Precision::Float32, 2e-5}, {Precision::BFloat16, 6e-2}}) {
    const auto runner = make_runner(precision), exact = make_runner(Precision::Float32);
    auto cpu = cpu_stream(1);
    Stream gpu(std::make_unique<cuda::Stream>());
    for (const char* tier : {"full", "2x4"}) {
      const auto tokens = random_tokens(200, 64, 5);
      Session here(exact, find_tier(exact.config(), tier), cpu), there(runner, find_tier(runner.config(), tier), gpu),
          split(runner, find_tier(runner.config(), tier), gpu);
      here.feed(std::span(tokens).first(70));
      there.feed(std::span(tokens).first(70));
      EXPECT_LE(distance(there.logits(), here.logits()), tolerance);
      for (std::size_t i = 70; i < tokens.size(); ++i) {
        here.feed({&tokens[i], 1});
        there.feed({&tokens[i], 1});
        ASSERT_LE(distance(there.logits(), here.logits()), tolerance) << "token " << i;
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
