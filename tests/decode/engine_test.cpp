#include "essh/decode/engine.h"

#include <thread>

#include "essh/model/cost.h"
#include "tests/decode/engine_checks.h"
#include "tests/store/temp_folder.h"

namespace essh {
namespace {

TEST(Engine, SixtyFourSlotsOfTenTiersComputeWhatEachComputesAlone) {
  auto stream = cpu_stream(2);
  check_slots_among_others(stream, {.piece = 32}, 64, 4);
}

TEST(Engine, ThreadsChangeNoBit) {
  const auto tokens = random_tokens(70, 300, 5);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    auto stream = cpu_stream(threads);
    Engine engine(engine_family(), stream);
    const Chunk chunk{.slot = engine.open(find_tier(engine.config(), "T6")), .tokens = tokens};
    const auto logits = last_logits(engine.run({&chunk, 1}).entries[0]);
    if (first.empty()) first = logits;
    EXPECT_TRUE(same_bits(logits, first)) << threads;
  }
}

TEST(Engine, ForkRewindAndRestoreChangeNoBit) {
  auto stream = cpu_stream(2);
  check_fork_rewind_restore(stream, {});
}

TEST(Engine, PackedStatesGoOnWithTheSameBits) {
  auto stream = cpu_stream(2);
  check_packed(stream, {});
  check_packed(stream, {}, engine_family({.full_attention = false}));
  check_packed(stream, {}, engine_family({.transformer = true}));
}

// Slot ids are never reused.
TEST(Engine, AClosedSlotIsNotTheNextOne) {
  auto stream = cpu_stream(1);
  Engine engine(engine_family(), stream);
  const auto tier = find_tier(engine.config(), "T1");
  const auto first = engine.open(tier);
  engine.close(first);
  const auto second = engine.open(tier);
  EXPECT_NE(first, second);
  EXPECT_EQ(engine.position(second), 0);
  EXPECT_THROW(engine.position(first), Error);
  EXPECT_THROW(engine.close(first), Error);
  EXPECT_THROW(engine.position(Slot{}), Error);
  EXPECT_THROW(engine.position(Slot{second.id + 1}), Error);
}

TEST(Engine, PreparingChangesNoBit) {
  auto stream = cpu_stream(2);
  check_prepared(stream, {});
}

TEST(Engine, GivesWhatAChunkWants) {
  auto stream = cpu_stream(2);
  check_outputs(stream, {});
}

TEST(Engine, CallsMeanwhileOnce) {
  auto stream = cpu_stream(2);
  check_meanwhile(stream, {});
}

TEST(Engine, GeneratesWhatSingleStepsDraw) {
  auto stream = cpu_stream(2);
  check_generate(stream, {});
}

TEST(Engine, TokensAloneAreThoseOfTheLogits) {
  auto stream = cpu_stream(2);
  check_tokens(stream, {});
}

TEST(Engine, TextsOfSamplersAreThoseOfTheLogits) {
  auto stream = cpu_stream(2);
  check_sampled_tokens(stream, {});
}

TEST(Engine, TenThousandStepsDoNotDrift) {
  auto stream = cpu_stream(2);
  check_no_drift(stream, {}, 4e-6, engine_family({.full_attention = false}));
}

TEST(Engine, TiersShareAPass) {
  auto stream = cpu_stream(2);
  check_mixed_tiers(stream, {}, 2e-5);
}

// Threads share one engine, and two engines share one stream.
TEST(Engine, IsUsableFromAnyThread) {
  auto stream = cpu_stream(2);
  Engine shared(engine_family(), stream), other(engine_family(), stream);
  const auto tokens = random_tokens(40, 300, 2);
  const auto tier = find_tier(shared.config(), "T3");
  const auto decode = [&](Engine& engine, std::vector<float>& out) {
    const auto slot = engine.open(tier);
    for (const auto& token : tokens) {
      const Chunk chunk{.slot = slot, .tokens = {&token, 1}};
      out = last_logits(engine.run({&chunk, 1}).entries[0]);
    }
    engine.close(slot);
  };
  std::vector<float> expected;
  decode(shared, expected);
  std::vector<std::vector<float>> found(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { decode(i % 2 ? shared : other, found[i]); });
  for (auto& thread : threads) thread.join();
  for (const auto& logits : found) EXPECT_TRUE(same_bits(logits, expected));
}

TEST(Engine, ASnapshotOfAShortPrefixIsSmall) {
  auto config = preset("1.5b");
  config.vocab_size = 512;  // the vocabulary is not part of the state
  config.bos_token_id = config.eos_token_id = 0;
  config.intermediate_size = 64;
  config.elastic = {};
  // A quarter of the layers.
  if (kSanitized) {
    config.num_hidden_layers = 7;
    config.attention_layers = {6};
  }
  StoredModel model(LoadedModel{config, Parameters<float>(config)});
  auto stream = cpu_stream(2);
  Engine engine(model, stream);
  const auto tier = find_tier(config, "full");
  const auto tokens = random_tokens(10, config.vocab_size, 1);
  const Chunk chunk{.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::Nothing};
  engine.run({&chunk, 1});
  const auto bytes = engine.snapshot(chunk.slot).bytes();
  EXPECT_LE(bytes, kSanitized ? 1'125'000u : 4'500'000u);
  EXPECT_GE(bytes, static_cast<std::size_t>(cost_of(config, full_capacity(config)).state_bytes));
}

struct StoredEngine : TempFolderTest {};

// Weights keep the format of their file.
TEST_F(StoredEngine, HalfPrecisionFoldersComputeTheirRoundedValues) {
  auto config = small_config();
  config.vocab_size = 65;
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3);
  auto stream = cpu_stream(2);
  const auto tokens = random_tokens(90, config.vocab_size, 4);
  for (const auto dtype : {DType::BF16, DType::F16, DType::F32}) {
    save_model(folder / "half", config, model.parameters, full_capacity(config),
               {.format = {dtype}, .existing = ExistingFolder::Replace});
    const auto stored = StoredModel::open(folder / "half");
    std::size_t in_format = 0;
    for (const auto& weight : stored.weights().tensors)
      in_format += weight.format == (dtype == DType::BF16  ? Format::BF16
                                     : dtype == DType::F16 ? Format::F16
                                                           : Format::F32);
    EXPECT_GE(in_format, 16u);
    Engine mapped(stored, stream), inflated(StoredModel(load_model(folder / "half")), stream);
    for (const char* name : {"full", "2x4"}) {
      std::vector<std::vector<float>> found;
      for (auto* engine : {&mapped, &inflated}) {
        const auto slot = engine->open(find_tier(config, name));
        const Chunk prompt{.slot = slot, .tokens = std::span(tokens).first(80)},
            step{.slot = slot, .tokens = std::span(tokens).subspan(80, 1)};
        engine->run({&prompt, 1});
        found.push_back(last_logits(engine->run({&step, 1}).entries[0]));
      }
      EXPECT_TRUE(same_bits(found[0], found[1])) << name;
    }
  }
}

TEST_F(StoredEngine, ValuesThatAreNotFiniteAreRefusedInEveryFormat) {
  auto config = small_config();
  LoadedModel model{config, Parameters<float>(config)};
  fill_randomly(model.parameters, 3);
  model.parameters.tensor(model.parameters.layout().find(1, "self_attn.q_proj.weight"))[3] = INFINITY;
  for (const auto dtype : {DType::F32, DType::BF16, DType::F16}) {
    save_model(folder / "bad", config, model.parameters, full_capacity(config),
               {.format = {dtype}, .existing = ExistingFolder::Replace});
    EXPECT_NE(message_of([&] { StoredModel::open(folder / "bad"); }).find("q_proj.weight has 1 values"),
              std::string::npos);
    EXPECT_NO_THROW(StoredModel::open(folder / "bad", NonFinite::Accept));
  }
}

TEST(Engine, WindowsInEightBits) {
  auto stream = cpu_stream(2);
  check_rounded_states(stream, {}, &EngineOptions::fp8_windows, 2e-2);
  auto config = engine_family().config();
  config.sliding_attention = {.num_attention_heads = 32, .head_dim = 4};
  EXPECT_THROW(Engine(StoredModel(LoadedModel{config, Parameters<float>(config)}), stream, {.fp8_windows = true}),
               Error);
}

TEST(Engine, StatesInBFloat16) {
  auto stream = cpu_stream(2);
  check_rounded_states(stream, {}, &EngineOptions::bf16_states, 4e-2);
}

}  // namespace
}  // namespace essh
