#include <gtest/gtest.h>

#include <cstring>

#include "tests/model/small_model.h"

namespace essh {
namespace {

// A pass without a tape uses other kernels; the result has the same bits.
TEST(ModelForward, ATapeChangesNoBit) {
  const auto config = small_config();
  const Model<float> model(config);
  Parameters<float> parameters(config);
  fill_randomly(parameters, 3);
  auto stream = cpu_stream(2);
  for (const Index length : {1, 2, 64, 65, 150}) {
    for (const Capacity capacity : {Capacity{3, 7}, Capacity{2, 4}}) {
      const auto hidden = [&](bool with_tape) {
        Arena arena(Device::Cpu);
        const Pass pass{.stream = stream, .arena = arena, .capacity = capacity, .sequences = 2, .length = length};
        const auto tokens = random_tokens(static_cast<std::size_t>(2 * length), config.vocab_size, 1);
        const auto ids = arena.vector<std::int32_t>(2 * length);
        upload(stream, tokens, ids);
        Model<float>::Tape tape;
        const auto result = model.forward(pass, parameters.weights(), ids, with_tape ? &tape : nullptr);
        return std::vector<float>(result.data, result.data + result.rows * result.cols);
      };
      const auto kept = hidden(true), alone = hidden(false);
      EXPECT_EQ(std::memcmp(kept.data(), alone.data(), kept.size() * sizeof(float)), 0) << length;
    }
  }
}

}  // namespace
}  // namespace essh
