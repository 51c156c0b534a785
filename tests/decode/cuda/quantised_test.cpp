#include "tests/decode/engine_checks.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

struct QuantisedCuda : TempFolderTest, ::testing::WithParamInterface<const char*> {
  void SetUp() override {
    TempFolderTest::SetUp();
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  // Small models read codes only if they must.
  static EngineOptions coded() { return {.precision = Precision::BFloat16, .codes_from = 0}; }
  static MatrixFormat format() { return parse_matrix_format(GetParam()); }

  // The test family as a quantised export of all its tiers, from its folder.
  StoredModel exported() {
    const auto family = engine_family();
    Parameters<float> parameters(family.config());
    for (std::size_t i = 0; i < family.weights().tensors.size(); ++i)
      read_weight<float>(family.weights()[i], parameters.tensor(i));
    save_model(folder / GetParam(), family.config(), parameters, full_capacity(family.config()), {.format = format()});
    return StoredModel::open(folder / GetParam());
  }
  static std::vector<Tier> tiers(const ModelConfig& config) {
    std::vector<Tier> all;
    for (const char* name : {"T1", "T4", "T10"}) all.push_back(find_tier(config, name));
    for (const Capacity odd : {Capacity{3, 40}, {7, 36}, {5, 37}}) all.push_back(custom_tier(config, odd));
    return all;
  }
};

double distance(const std::vector<float>& x, const std::vector<float>& exact) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = static_cast<double>(x[i]) - static_cast<double>(exact[i]);
    apart += difference * difference;
    size += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
  return std::sqrt(apart / size);
}

// Logits of `count` sequences, step by step after prompts below and beyond the window.
std::vector<std::vector<float>> decode(Engine& engine, const Tier& tier, std::size_t count, std::size_t steps) {
  const auto prompt = [](std::size_t b) { return b % 2 == 0 ? std::size_t{20} : std::size_t{60}; };
  std::vector<std::vector<std::int32_t>> texts;
  std::vector<Chunk> chunks;
  for (std::size_t b = 0; b < count; ++b) {
    texts.push_back(random_tokens(prompt(b) + steps, engine.config().vocab_size, b));
    chunks.push_back({.slot = engine.open(tier), .tokens = std::span(texts[b]).first(prompt(b))});
    engine.run({&chunks[b], 1});
  }
  std::vector<std::vector<float>> logits;
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t b = 0; b < count; ++b) chunks[b].tokens = std::span(texts[b]).subspan(prompt(b) + step, 1);
    for (const auto& entry : engine.run(chunks).entries) logits.push_back(last_logits(entry));
  }
  for (const auto& chunk : chunks) engine.close(chunk.slot);
  return logits;
}

// Steps that read codes against kernel by kernel with the dequantised copy, against a streamed step of the same bf16
// weights, and against float32 on the CPU.
TEST_P(QuantisedCuda, StepsComputeTheDequantisedModel) {
  Stream gpu(std::make_unique<cuda::Stream>());
  auto cpu = cpu_stream(4);
  const auto model = exported();
  Engine fused(model, gpu, coded());
  Engine plain(model, gpu, {.precision = Precision::BFloat16, .fused = false});
  Engine rounded(model.stored_as({.dtype = DType::BF16}), gpu, {.precision = Precision::BFloat16});
  Engine exact(model, cpu);
  for (const auto& tier : tiers(model.config())) {
    EXPECT_EQ(fused.step_weights(tier, 1).format, GetParam());
    EXPECT_EQ(fused.step_weights(tier, 8).format, GetParam());
    EXPECT_LT(static_cast<double>(fused.step_weights(tier, 1).bytes),
              0.62 * static_cast<double>(plain.step_weights(tier, 1).bytes));
    EXPECT_EQ(plain.step_weights(tier, 1).format, "bfloat16");
    EXPECT_EQ(rounded.step_weights(tier, 1).format, "bfloat16");
    for (std::size_t count = 1; count <= 8; ++count) {
      const auto found = decode(fused, tier, count, 6), wanted = decode(plain, tier, count, 6),
                 same_weights = decode(rounded, tier, count, 6);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_LE(distance(found[i], wanted[i]), 6e-2) << tier.name << ", batch " << count << ", " << i;
        EXPECT_LE(distance(found[i], same_weights[i]), 2e-2) << tier.name << ", batch " << count << ", " << i;
      }
      if (count != 3) continue;
      const auto here = decode(exact, tier, count, 6);
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_LE(distance(found[i], here[i]), 6e-2) << tier.name << ", batch " << count << ", " << i;
    }
  }
}

TEST_P(QuantisedCuda, BitsDependNeitherOnOtherSlotsNorOnTheCut) {
  Stream gpu(std::make_unique<cuda::Stream>());
  const auto model = exported();
  check_slots_among_others(gpu, coded(), 16, 4, model);
  Engine family(model, gpu, coded());
  for (const auto& tier : tiers(model.config())) {
    Engine alone(model.cut(tier.capacity), gpu, coded());
    EXPECT_EQ(alone.step_weights({"full", 1, tier.capacity}, 1).format, GetParam());
    const auto found = decode(alone, {"full", 1, tier.capacity}, 2, 4), wanted = decode(family, tier, 2, 4);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], wanted[i])) << tier.name;
  }
}

TEST_P(QuantisedCuda, GeneratedTokensAreThoseOfTheLogits) {
  Stream gpu(std::make_unique<cuda::Stream>());
  check_generate(gpu, coded(), engine_family().stored_as(format()));
}

// In float32 weights are dequantised.
TEST_P(QuantisedCuda, Float32IsDequantised) {
  Stream gpu(std::make_unique<cuda::Stream>());
  auto cpu = cpu_stream(4);
  const auto model = engine_family().stored_as(format());
  Engine there(model, gpu, {.precision = Precision::Float32, .codes_from = 0}), here(model, cpu);
  const auto tier = find_tier(model.config(), "T4");
  EXPECT_EQ(there.step_weights(tier, 1).format, "float32");
  const auto found = decode(there, tier, 2, 4), wanted = decode(here, tier, 2, 4);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_LE(distance(found[i], wanted[i]), 2e-5);
}

TEST_P(QuantisedCuda, SmallModelsAreDequantised) {
  Stream gpu(std::make_unique<cuda::Stream>());
  Engine engine(engine_family().stored_as(format()), gpu, {.precision = Precision::BFloat16});
  EXPECT_EQ(engine.step_weights(find_tier(engine.config(), "T10"), 1).format, "bfloat16");
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantisedCuda, ::testing::Values("q8", "fp8", "q4"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace essh
