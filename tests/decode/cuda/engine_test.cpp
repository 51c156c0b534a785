#include "tests/decode/engine_checks.h"

namespace essh {
namespace {

struct Arithmetic {
  const char* name;
  Precision precision;
  bool residual_in_fp32 = false;
};

struct EngineCuda : ::testing::TestWithParam<Arithmetic> {
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  static Precision precision() { return GetParam().precision; }
  static StoredModel family_model() { return engine_family({.residual_in_fp32 = GetParam().residual_in_fp32}); }
};

TEST_P(EngineCuda, SixtyFourSlotsOfTenTiersComputeWhatEachComputesAlone) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_slots_among_others(stream, {.precision = precision()}, 64, 8, family_model());
}

TEST_P(EngineCuda, ForkRewindAndRestoreChangeNoBit) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_fork_rewind_restore(stream, {.precision = precision()}, family_model());
}

TEST_P(EngineCuda, PackedStatesGoOnWithTheSameBits) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_packed(stream, {.precision = precision()}, family_model());
}

TEST_P(EngineCuda, PreparingChangesNoBit) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_prepared(stream, {.precision = precision()}, family_model());
  check_prepared(stream, {.precision = precision(), .fused = false}, family_model());
  check_prepared(stream, {.precision = precision(), .deterministic = true}, family_model());
}

TEST_P(EngineCuda, GivesWhatAChunkWants) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_outputs(stream, {.precision = precision()}, family_model());
}

TEST_P(EngineCuda, CallsMeanwhileOnce) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_meanwhile(stream, {.precision = precision()}, family_model());
  check_meanwhile(stream, {.precision = precision(), .sample_on_device = false}, family_model());
}

TEST_P(EngineCuda, GeneratesWhatSingleStepsDraw) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_generate(stream, {.precision = precision()}, family_model());
  check_generate(stream, {.precision = precision(), .fused = false}, family_model());
}

TEST_P(EngineCuda, TokensAloneAreThoseOfTheLogits) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_tokens(stream, {.precision = precision()}, family_model());
  check_tokens(stream, {.precision = precision(), .fused = false}, family_model());
}

// Drawn on the device and on the host.
TEST_P(EngineCuda, TextsOfSamplersAreThoseOfTheLogits) {
  Stream stream(std::make_unique<cuda::Stream>());
  for (const bool sample_on_device : {true, false}) {
    for (const bool fused : {true, false}) {
      check_sampled_tokens(stream, {.precision = precision(), .fused = fused, .sample_on_device = sample_on_device},
                           family_model());
    }
  }
}

TEST_P(EngineCuda, TenThousandStepsDoNotDrift) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_no_drift(stream, {.precision = precision()}, precision() == Precision::Float32 ? 3e-5 : 4e-2, family_model());
}

TEST_P(EngineCuda, TiersShareAPass) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_mixed_tiers(stream, {.precision = precision()}, precision() == Precision::Float32 ? 2e-5 : 4e-2,
                    family_model());
}

// Of the logits, relative to the second ones.
double distance(const Outputs::Entry& a, const Outputs::Entry& b) {
  double apart = 0, size = 0;
  for (Index c = 0; c < b.logits.cols; ++c) {
    const double x = static_cast<double>(a.logits(0, c)), y = static_cast<double>(b.logits(0, c));
    apart += (x - y) * (x - y);
    size += y * y;
  }
  return std::sqrt(apart / size);
}

// Graphs of single steps, batches and prompts against the CPU.
void check_against_cpu(const StoredModel& family, Precision precision) {
  Stream gpu(std::make_unique<cuda::Stream>());
  auto cpu = cpu_stream(4);
  Engine there(family, gpu, {.precision = precision}), here(family, cpu);
  const double tolerance = precision == Precision::BFloat16 ? 6e-2 : 2e-5;
  const auto tokens = random_tokens(400, 300, 5);
  std::vector<Chunk> far, near;
  for (const char* name : {"T1", "T4", "T10"}) {
    far.push_back({.slot = there.open(find_tier(there.config(), name))});
    near.push_back({.slot = here.open(find_tier(here.config(), name))});
  }
  for (std::size_t begin = 0; begin < tokens.size();) {
    const std::size_t length = begin == 0 ? 300 : 1;
    for (auto* chunks : {&far, &near}) {
      for (auto& chunk : *chunks) chunk.tokens = std::span(tokens).subspan(begin, length);
    }
    const auto a = there.run(far), b = here.run(near);
    for (std::size_t i = 0; i < far.size(); ++i) {
      ASSERT_LE(distance(a.entries[i], b.entries[i]), tolerance) << "chunk " << i << " at " << begin;
    }
    begin += length;
  }
}
TEST_P(EngineCuda, AgreesWithTheCpu) {
  check_against_cpu(family_model(), precision());
}
TEST_P(EngineCuda, ATransformerAgreesWithTheCpu) {
  check_against_cpu(engine_family({.residual_in_fp32 = GetParam().residual_in_fp32, .transformer = true}), precision());
}

// Steps of more sequences than the streamed step takes, the later ones from a graph; with products of our own, which
// read weights before the previous kernel has ended, and with cuBLASLt's.
TEST_P(EngineCuda, ManySequencesAgreeWithTheCpu) {
  Stream gpu(std::make_unique<cuda::Stream>());
  auto cpu = cpu_stream(4);
  const auto family = family_model();
  Engine there(family, gpu, {.precision = precision()}), here(family, cpu);
  const double tolerance = precision() == Precision::BFloat16 ? 6e-2 : 2e-5;
  for (const auto& [name, count, own] :
       {std::tuple<const char*, std::size_t, bool>{"T10", 20, true}, {"T4", 70, true}, {"T7", 20, false}}) {
    gpu.set_own_products(own);
    std::vector<std::vector<std::int32_t>> texts;
    std::vector<Chunk> far, near;
    for (std::size_t i = 0; i < count; ++i) {
      texts.push_back(random_tokens(8, 300, 40 + i));
      far.push_back({.slot = there.open(find_tier(there.config(), name))});
      near.push_back({.slot = here.open(find_tier(here.config(), name))});
    }
    for (std::size_t token = 0; token < 8; ++token) {
      for (auto* chunks : {&far, &near}) {
        for (std::size_t i = 0; i < count; ++i) (*chunks)[i].tokens = std::span(texts[i]).subspan(token, 1);
      }
      const auto a = there.run(far), b = here.run(near);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_LE(distance(a.entries[i], b.entries[i]), tolerance) << name << ", sequence " << i << ", token " << token;
      }
    }
    for (const auto& chunk : far) there.close(chunk.slot);
    for (const auto& chunk : near) here.close(chunk.slot);
  }
}

// A tier of the family and its export compute the same bits. Includes capacities with odd sizes.
TEST_P(EngineCuda, ATierComputesTheBitsOfItsExport) {
  Stream stream(std::make_unique<cuda::Stream>());
  Engine family(family_model(), stream, {.precision = precision()});
  auto tiers = tiers_of(family.config());
  for (const Capacity odd : {Capacity{3, 40}, {7, 36}, {5, 37}}) tiers.push_back(custom_tier(family.config(), odd));
  for (const auto& tier : tiers) {
    Engine exported(family.model().cut(tier.capacity), stream, {.precision = precision()});
    for (const std::size_t length : {1u, 63u, 64u, 65u, 2048u}) {
      const auto tokens = random_tokens(length + 8, 300, 4);
      std::vector<std::vector<float>> found;
      for (auto* engine : {&family, &exported}) {
        const auto slot = engine->open(tier);
        const Chunk prompt{.slot = slot, .tokens = std::span(tokens).first(length), .wanted = Wanted::All};
        const auto all = engine->run({&prompt, 1}).entries[0].logits;
        EXPECT_EQ(all.rows, static_cast<Index>(length));
        auto& logits = found.emplace_back();
        for (std::size_t i = length; i < tokens.size(); ++i) {
          const Chunk step{.slot = slot, .tokens = std::span(tokens).subspan(i, 1)};
          const auto one = last_logits(engine->run({&step, 1}).entries[0]);
          logits.insert(logits.end(), one.begin(), one.end());
        }
        engine->close(slot);
      }
      EXPECT_TRUE(same_bits(found[0], found[1])) << tier.name << ", " << length << " tokens";
    }
  }
}

// Launch parameters by default, tuned, and with every pace of the streamed step.
TEST_P(EngineCuda, TunedLaunchesChangeNoBit) {
  Stream stream(std::make_unique<cuda::Stream>());
  constexpr std::size_t kPrompt = 1100;
  const auto tokens = random_tokens(kPrompt + 4, 300, 6);
  const auto logits = [&] {
    Engine engine(family_model(), stream, {.precision = precision()});
    std::vector<float> found;
    for (const std::size_t count : {1u, 3u, 8u, 24u}) {
      std::vector<Chunk> chunks;
      while (chunks.size() < count) chunks.push_back({.slot = engine.open(find_tier(engine.config(), "T10"))});
      for (std::size_t begin = 0, length = kPrompt; begin < tokens.size(); begin += std::exchange(length, 1)) {
        for (auto& chunk : chunks) chunk.tokens = std::span(tokens).subspan(begin, length);
        const auto outputs = engine.run(chunks);
        for (const auto& entry : outputs.entries) {
          const auto one = last_logits(entry);
          found.insert(found.end(), one.begin(), one.end());
        }
      }
      for (const auto& chunk : chunks) engine.close(chunk.slot);
    }
    return found;
  };
  stream.set_tunes_launches(false);
  const auto wanted = logits();
  stream.set_tunes_launches(true);
  EXPECT_TRUE(same_bits(logits(), wanted)) << "tuned";
  for (int pace = 0; pace < 9; ++pace) {
    const auto chosen = std::to_string(pace);
    const auto streamed = [&](auto&& use) {
      for (auto& [name, choice] : stream.choices())
        if (name.starts_with("pace of the streamed step ")) use(choice);
    };
    int count = 0;
    streamed([&](auto& choice) {
      choice = chosen;
      ++count;
    });
    EXPECT_EQ(count, stream.cuda()->early_launches() ? 3 : 0) << "of 1, 4 and 8 sequences";
    EXPECT_TRUE(same_bits(logits(), wanted)) << "pace " << pace;
    // One that is not a candidate would be measured again.
    streamed([&](const auto& choice) { EXPECT_EQ(choice, chosen); });
  }
}

TEST_P(EngineCuda, WindowsInEightBits) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_rounded_states(stream, {.precision = precision()}, &EngineOptions::fp8_windows,
                       precision() == Precision::Float32 ? 2e-2 : 6e-2, family_model());
}

// Enough heads that bf16 engines stream whole rows of the windows, two heads per warp, in two shares.
TEST_P(EngineCuda, WideWindowsInEightBits) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_rounded_states(
      stream, {.precision = precision()}, &EngineOptions::fp8_windows, precision() == Precision::Float32 ? 2e-2 : 6e-2,
      engine_family({.residual_in_fp32 = GetParam().residual_in_fp32, .window_heads = 24, .window = 140}));
}

TEST_P(EngineCuda, StatesInBFloat16) {
  Stream stream(std::make_unique<cuda::Stream>());
  check_rounded_states(stream, {.precision = precision()}, &EngineOptions::bf16_states,
                       precision() == Precision::Float32 ? 4e-2 : 6e-2, family_model());
}

INSTANTIATE_TEST_SUITE_P(Precisions, EngineCuda,
                         ::testing::Values(Arithmetic{"float32", Precision::Float32},
                                           Arithmetic{"bf16", Precision::BFloat16},
                                           Arithmetic{"bf16_residual_in_fp32", Precision::BFloat16, true}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace essh
