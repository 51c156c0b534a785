#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "essh/decode/engine.h"
#include "essh/model/initialise.h"
#include "tests/model/small_model.h"
#include "tests/sanitized.h"

// Checks of the contract of Engine, for any device.
namespace essh {

// A family with sliding and, unless told otherwise, full attention. The window is shorter than the texts of the tests.
struct FamilyShape {
  bool full_attention = true, residual_in_fp32 = false;
  bool transformer = false;  // full attention in all layers
  Index window_heads = 2, window = 50;
};
inline StoredModel engine_family(const FamilyShape& shape = {}) {
  ModelConfig config = preset("tiny");
  config.residual_in_fp32 = shape.residual_in_fp32;
  config.vocab_size = 300;
  config.hidden_size = kSanitized ? 64 : 128;
  config.intermediate_size = 320;
  config.num_hidden_layers = 4;
  config.attention_layers = {};
  config.layer_types = {"spectral", "sliding_attention", "spectral", "full_attention"};
  if (!shape.full_attention) config.layer_types = {"spectral", "sliding_attention", "spectral", "spectral"};
  if (shape.transformer) config.layer_types.assign(4, "full_attention");
  config.sliding_attention = {.num_attention_heads = shape.window_heads, .head_dim = 64};
  config.full_attention = {.num_attention_heads = 4, .num_key_value_heads = 2, .head_dim = 32};
  config.sliding_window = shape.window;
  config.elastic = two_rate(config.spectral_channels, 320, deployment_budgets());
  LoadedModel model{config, Parameters<float>(config)};
  initialise(model.parameters, config, 3);
  Rng rng(9);
  const auto& tensors = model.parameters.layout().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].role != Role::Matrix && tensors[i].role != Role::Blend) continue;
    for (auto& x : model.parameters.tensor(i)) x += static_cast<float>(0.05 * rng.normal());
  }
  return StoredModel(std::move(model), "family");
}

inline std::vector<float> last_logits(const Outputs::Entry& entry) {
  return {entry.logits.data, entry.logits.data + entry.logits.cols};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `count` slots over all tiers open and close at random; a pass mixes prompts and single tokens. Each slot computes the
// same bits as in an engine of its own.
inline void check_slots_among_others(Stream& stream, EngineOptions options, std::size_t count, int rounds,
                                     const StoredModel& family = engine_family()) {
  options.deterministic = true;
  Engine engine(family, stream, options);
  const auto tiers = tiers_of(engine.config());
  struct Live {
    Slot slot;
    Tier tier;
    std::vector<std::vector<std::int32_t>> chunks;
    std::vector<std::vector<float>> logits;
  };
  std::vector<Live> live, left;
  Rng rng(17);
  const auto join = [&] {
    const auto& tier = tiers[(live.size() + left.size()) % tiers.size()];
    live.push_back({engine.open(tier), tier, {}, {}});
  };
  while (live.size() < count) join();
  std::set<Index> positions;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Chunk> chunks;
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < live.size(); ++i) {
      const auto kind = rng.below(10);
      if (kind == 0 && round > 0) continue;
      const std::size_t length = round == 0 ? 1 + rng.below(90) : kind < 8 ? 1 : 1 + rng.below(70);
      live[i].chunks.push_back(random_tokens(length, engine.config().vocab_size, rng.next()));
      who.push_back(i);
    }
    for (const auto i : who) chunks.push_back({.slot = live[i].slot, .tokens = live[i].chunks.back()});
    const auto outputs = engine.run(chunks);
    for (std::size_t k = 0; k < who.size(); ++k) live[who[k]].logits.push_back(last_logits(outputs.entries[k]));
    for (const auto& one : live) positions.insert(engine.position(one.slot));
    const auto leaver = rng.below(live.size());
    engine.close(live[leaver].slot);
    left.push_back(std::move(live[leaver]));
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(leaver));
    join();
  }
  EXPECT_GT(positions.size(), count / 2) << "positions differ";
  for (auto& one : live) left.push_back(std::move(one));
  Engine alone(family, stream, options);
  std::size_t compared = 0;
  for (const auto& one : left) {
    const auto slot = alone.open(one.tier);
    for (std::size_t c = 0; c < one.chunks.size(); ++c) {
      const Chunk chunk{.slot = slot, .tokens = one.chunks[c]};
      ASSERT_TRUE(same_bits(last_logits(alone.run({&chunk, 1}).entries[0]), one.logits[c]))
          << one.tier.name << ", chunk " << c << " of " << one.chunks[c].size() << " tokens";
      ++compared;
    }
    alone.close(slot);
  }
  EXPECT_GT(compared, count);
}

// Fork, rewind by 1 to 8 tokens (fed singly or as a chunk), snapshot and restore change no bit.
inline void check_fork_rewind_restore(Stream& stream, EngineOptions options,
                                      const StoredModel& family = engine_family()) {
  options.deterministic = true;
  Engine engine(family, stream, options);
  const auto tokens = random_tokens(120, engine.config().vocab_size, 5);
  const auto tier = find_tier(engine.config(), "T4");
  const auto feed = [&](Slot slot, std::size_t begin, std::size_t end) {
    const Chunk chunk{.slot = slot, .tokens = std::span(tokens).subspan(begin, end - begin)};
    return last_logits(engine.run({&chunk, 1}).entries[0]);
  };
  const auto feed_kept = [&](Slot slot, std::size_t begin, std::size_t end) {
    const Chunk chunk{.slot = slot, .tokens = std::span(tokens).subspan(begin, end - begin), .keeps_states = true};
    engine.run({&chunk, 1});
  };
  const auto feed_one_by_one = [&](Slot slot, std::size_t begin, std::size_t end) {
    std::vector<float> logits;
    for (std::size_t i = begin; i < end; ++i) logits = feed(slot, i, i + 1);
    return logits;
  };
  // The reference: no rewind.
  const auto plain = engine.open(tier, {.rewind = 8});
  feed(plain, 0, 100);
  const auto fork = engine.fork(plain);
  const auto expected = feed_one_by_one(plain, 100, 110);
  EXPECT_TRUE(same_bits(feed_one_by_one(fork, 100, 110), expected));

  for (Index back = 1; back <= 8; ++back) {
    const auto slot = engine.open(tier, {.rewind = 8});
    feed(slot, 0, 100);
    // Wrong tokens, fed singly, then rewound.
    for (Index i = 0; i < back; ++i) feed(slot, 3, 4);
    engine.rewind(slot, back);
    EXPECT_EQ(engine.position(slot), 100);
    EXPECT_TRUE(same_bits(feed_one_by_one(slot, 100, 110), expected)) << "steps, back " << back;
    engine.close(slot);

    // Rewinding into a chunk with keeps_states equals feeding only the tokens that remain.
    const auto partly = engine.open(tier, {.rewind = 8}), rest = engine.open(tier, {.rewind = 8});
    feed(partly, 0, 60);
    feed_kept(partly, 60, 60 + 8);
    engine.rewind(partly, back);
    feed(rest, 0, 60);
    if (back < 8) feed_kept(rest, 60, 60 + 8 - static_cast<std::size_t>(back));
    EXPECT_EQ(engine.position(partly), engine.position(rest));
    EXPECT_TRUE(same_bits(feed_one_by_one(partly, 80, 85), feed_one_by_one(rest, 80, 85))) << "chunk, back " << back;
    // A chunk without keeps_states can be rewound only as a whole.
    engine.reset(partly);
    feed(partly, 0, 50);
    feed(partly, 50, 54);
    if (back != 4) {
      EXPECT_THROW(engine.rewind(partly, back), Error);
      EXPECT_EQ(engine.position(partly), 54);
    } else {
      engine.rewind(partly, back);
      EXPECT_EQ(engine.position(partly), 50);
    }
    engine.close(partly);
    engine.close(rest);
  }
  EXPECT_THROW(engine.rewind(plain, 9), Error);
  const auto fixed = engine.open(tier);
  feed(fixed, 0, 10);
  EXPECT_THROW(engine.rewind(fixed, 1), Error);
  EXPECT_EQ(engine.position(fixed), 10);
  EXPECT_THROW(engine.open(tier, {.rewind = 1000}), Error);

  for (const std::size_t length : {1u, 10u, 49u, 50u, 51u, 66u, 67u, 100u}) {
    const auto first = engine.open(tier);
    feed(first, 0, length);
    const auto kept = engine.snapshot(first);
    const auto second = engine.restore(tier, kept, {.rewind = 3});
    EXPECT_EQ(engine.position(second), static_cast<Index>(length));
    EXPECT_TRUE(same_bits(feed_one_by_one(second, 100, 120), feed_one_by_one(first, 100, 120))) << length;
    EXPECT_EQ(engine.snapshot(second).parts, engine.snapshot(first).parts);
    EXPECT_THROW(engine.restore(find_tier(engine.config(), "T5"), kept), Error);
    auto shorter = kept;
    shorter.parts.back().pop_back();
    EXPECT_THROW(engine.restore(tier, shorter), Error);
    engine.close(first);
    engine.close(second);
  }
}

// An unpacked state continues with the same bits as its slot: before and after rings wrap and caches grow, in a fresh
// slot and in one that held a longer text. The packed memory may be overwritten after unpack().
inline void check_packed(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  options.deterministic = true;
  Engine engine(family, stream, options);
  const auto tokens = random_tokens(700, engine.config().vocab_size, 5);
  const auto tier = find_tier(engine.config(), "T4");
  const auto feed = [&](Slot slot, std::size_t begin, std::size_t end) {
    const Chunk chunk{.slot = slot, .tokens = std::span(tokens).subspan(begin, end - begin)};
    return last_logits(engine.run({&chunk, 1}).entries[0]);
  };
  std::size_t before = 0;
  for (const std::size_t length : {1u, 10u, 49u, 50u, 51u, 66u, 67u, 100u, 300u, 600u}) {
    const auto first = engine.open(tier);
    feed(first, 0, length);
    const auto bytes = engine.packed_bytes(first);
    // Caches are packed up to their filled rows; the window has 50 rows.
    EXPECT_GE(bytes, before);
    if (length <= 50) {
      EXPECT_GT(bytes, before);
    }
    EXPECT_LT(bytes, engine.state_bytes(first) + 4096);
    before = bytes;
    const Buffer memory(stream.device(), bytes, "a packed state");
    const auto packed = engine.pack(first, memory.as<std::byte>());
    EXPECT_EQ(packed.position, static_cast<Index>(length));
    const auto second = engine.unpack(tier, packed), third = engine.unpack(tier, packed, {.rewind = 3});
    // Overwrites the packed memory with another state.
    const auto other = engine.open(tier);
    feed(other, 3, 4);
    engine.pack(other, memory.as<std::byte>());
    EXPECT_EQ(engine.position(second), static_cast<Index>(length));
    EXPECT_EQ(engine.snapshot(second).parts, engine.snapshot(first).parts) << length;
    for (std::size_t i = 600; i < (kSanitized ? 620 : 640); ++i) {
      const auto expected = feed(first, i, i + 1);
      ASSERT_TRUE(same_bits(feed(second, i, i + 1), expected)) << length << " tokens, then " << i;
      ASSERT_TRUE(same_bits(feed(third, i, i + 1), expected)) << length << " tokens, then " << i;
    }
    EXPECT_EQ(engine.snapshot(second).parts, engine.snapshot(first).parts) << length;
    for (const auto slot : {first, second, third, other}) engine.close(slot);
  }
}

// Rows, scores and last logits agree with the logits of all positions.
inline void check_outputs(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  Engine engine(family, stream, options);
  const auto tier = find_tier(engine.config(), "T7");
  const auto tokens = random_tokens(700, engine.config().vocab_size, 8), targets = random_tokens(700, 300, 9);
  auto some_targets = targets;
  some_targets[5] = some_targets[600] = kUnscored;
  const std::vector<Index> rows = {0, 3, 4, 511, 512, 699};
  const std::vector<Chunk> chunks = {
      {.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::All},
      {.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::Rows, .rows = rows},
      {.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::Scores, .targets = some_targets},
      {.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::Last},
      {.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::Nothing},
      {.slot = engine.open(tier), .tokens = tokens, .wanted = Wanted::Dropped}};
  const auto outputs = engine.run(chunks);
  const auto& all = outputs.entries[0].logits;
  ASSERT_EQ(all.rows, 700);
  const double tolerance = engine.precision() == Precision::BFloat16 ? 3e-2 : 1e-5;
  const auto near = [&](const float* a, const float* b) {
    double apart = 0, size = 0;
    for (Index c = 0; c < all.cols; ++c) {
      apart += std::pow(static_cast<double>(a[c]) - static_cast<double>(b[c]), 2);
      size += std::pow(static_cast<double>(b[c]), 2);
    }
    return std::sqrt(apart / size) <= tolerance;
  };
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_TRUE(near(outputs.entries[1].logits.row(static_cast<Index>(i)), all.row(rows[i]))) << rows[i];
  EXPECT_TRUE(near(outputs.entries[3].logits.row(0), all.row(699)));
  EXPECT_EQ(outputs.entries[4].logits.rows + outputs.entries[5].logits.rows, 0);
  ASSERT_EQ(outputs.entries[2].losses.size(), 700u);
  for (Index r = 0; r < 700; ++r) {
    double sum = 0;
    for (Index c = 0; c < all.cols; ++c) sum += std::exp(static_cast<double>(all(r, c)));
    const auto target = some_targets[static_cast<std::size_t>(r)];
    const double expected = target == kUnscored ? 0 : std::log(sum) - static_cast<double>(all(r, target));
    EXPECT_NEAR(outputs.entries[2].losses[static_cast<std::size_t>(r)], expected, 10 * tolerance) << r;
  }
}

// `meanwhile` is called once, whatever the chunks want, but not if the run fails.
inline void check_meanwhile(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  Engine engine(family, stream, options);
  const auto tier = find_tier(engine.config(), "T7");
  const auto tokens = random_tokens(40, engine.config().vocab_size, 8), targets = random_tokens(40, 300, 9);
  const std::vector<Index> rows = {0};
  const std::vector<std::int32_t> wrong = {static_cast<std::int32_t>(engine.config().vocab_size)};
  Outputs outputs;
  for (const auto wanted :
       {Wanted::Nothing, Wanted::Last, Wanted::Token, Wanted::All, Wanted::Rows, Wanted::Scores, Wanted::Dropped}) {
    for (const std::size_t length : {1, 40}) {
      for (const double temperature : {0, 1}) {
        Sampler sampler({.temperature = temperature});
        std::vector<Chunk> chunks(2);
        for (auto& chunk : chunks) {
          chunk = {.slot = engine.open(tier),
                   .tokens = std::span(tokens).first(length),
                   .wanted = wanted,
                   .rows = rows,
                   .targets = std::span(targets).first(length),
                   .sampler = wanted == Wanted::Token ? &sampler : nullptr};
        }
        int calls = 0;
        const auto count = [&] { ++calls; };
        engine.run(chunks, outputs, count);
        EXPECT_EQ(calls, 1) << static_cast<int>(wanted) << ", " << length << " tokens, temperature " << temperature;
        chunks[1].tokens = wrong;
        chunks[1].targets = std::span(targets).first(1);
        EXPECT_THROW(engine.run(chunks, outputs, count), Error);
        EXPECT_EQ(calls, 1) << static_cast<int>(wanted);
        for (const auto& chunk : chunks) engine.close(chunk.slot);
      }
    }
  }
}

// prepare() changes no slot and no bit.
inline void check_prepared(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  constexpr std::size_t kSlots = 21;
  const auto texts = [&](bool prepared) {
    Engine engine(family, stream, options);
    const auto tier = find_tier(engine.config(), "T5");
    const auto prompts = random_tokens(40 * kSlots, engine.config().vocab_size, 6);
    std::vector<Slot> slots;
    std::vector<Chunk> chunks;
    for (std::size_t b = 0; b < kSlots; ++b) {
      slots.push_back(engine.open(tier));
      chunks.push_back({.slot = slots[b], .tokens = std::span(prompts).subspan(40 * b, 20 + b)});
    }
    if (prepared) engine.prepare(tier, 50, 300);
    std::vector<float> found;
    const auto add = [&](const Outputs& outputs) {
      for (const auto& entry : outputs.entries) {
        const auto logits = last_logits(entry);
        found.insert(found.end(), logits.begin(), logits.end());
      }
    };
    add(engine.run(chunks));
    if (prepared) engine.prepare(tier, 30, 5000);
    for (const auto token : engine.generate(slots, random_tokens(kSlots, 300, 7), 20))
      found.push_back(static_cast<float>(token));
    for (std::size_t b = 0; b < kSlots; ++b) chunks[b].tokens = std::span(prompts).subspan(b, 1);
    add(engine.run(chunks));
    for (std::size_t b = 0; b < kSlots; ++b) EXPECT_EQ(engine.position(slots[b]), 41 + static_cast<Index>(b));
    return found;
  };
  const auto expected = texts(false);
  EXPECT_TRUE(same_bits(texts(true), expected));
}

// generate() returns the tokens of single steps drawn on the host and leaves the slots in the same state, for many
// slots and for more steps than the engine draws at once.
inline void check_generate(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  options.deterministic = true;
  Engine engine(family, stream, options);
  const auto tier = find_tier(engine.config(), "T5");
  constexpr std::size_t kSlots = 11, kSteps = kSanitized ? 100 : 300;  // twice the window at least
  const auto prompts = random_tokens(40 * kSlots, engine.config().vocab_size, 6);
  const auto first = random_tokens(kSlots, engine.config().vocab_size, 7);
  std::vector<Slot> slots, single;
  for (std::size_t b = 0; b < kSlots; ++b) {
    slots.push_back(engine.open(tier, {.rewind = 4}));
    const Chunk prompt{
        .slot = slots[b], .tokens = std::span(prompts).subspan(40 * b, 20 + b), .wanted = Wanted::Nothing};
    engine.run({&prompt, 1});
    single.push_back(engine.fork(slots[b]));
  }
  const auto together = engine.generate(slots, first, kSteps);
  ASSERT_EQ(together.size(), kSlots * kSteps);
  for (std::size_t b = 0; b < kSlots; ++b) {
    auto token = first[b];
    for (std::size_t step = 0; step < kSteps; ++step) {
      const Chunk chunk{.slot = single[b], .tokens = {&token, 1}};
      const auto outputs = engine.run({&chunk, 1});
      const auto drawn = Sampler({}).draw(last_logits(outputs.entries[0]));
      const auto other = together[step * kSlots + b];
      const auto logits = outputs.entries[0].logits;
      ASSERT_EQ(other, drawn) << "slot " << b << ", step " << step << ", token " << token << ", logits "
                              << logits(0, other) - logits(0, drawn) << " apart at " << logits(0, drawn);
      token = drawn;
    }
    EXPECT_EQ(engine.position(slots[b]), engine.position(single[b]));
    EXPECT_EQ(engine.snapshot(slots[b]).parts, engine.snapshot(single[b]).parts) << "slot " << b;
    // The slots can be rewound.
    engine.rewind(slots[b], 3);
    engine.rewind(single[b], 3);
    EXPECT_EQ(engine.snapshot(slots[b]).parts, engine.snapshot(single[b]).parts) << "slot " << b << ", taken back";
  }
  EXPECT_TRUE(engine.generate(slots, first, 0).empty());
}

// Wanted::Token returns the most likely token of the logits and leads to the same states, also beside chunks that want
// logits.
inline void check_tokens(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  options.deterministic = true;
  Engine engine(family, stream, options);
  const auto tiers = tiers_of(engine.config());
  constexpr std::size_t kSlots = 13;
  std::vector<Slot> tokens_only, with_logits;
  std::vector<std::vector<std::int32_t>> next;
  for (std::size_t b = 0; b < kSlots; ++b) {
    tokens_only.push_back(engine.open(tiers[b < 10 ? 4 : 7]));
    with_logits.push_back(engine.open(tiers[b < 10 ? 4 : 7]));
    next.push_back(random_tokens(5 + b, engine.config().vocab_size, b));
  }
  for (int round = 0; round < 30; ++round) {
    std::vector<Chunk> few, all;
    for (std::size_t b = 0; b < kSlots; ++b) {
      // In some rounds one slot wants logits; in some, one slot is fed four tokens.
      const bool wants = round % 5 == 2 && b == 3;
      if (round % 7 == 3 && b == 5) next[b].resize(4, next[b][0]);
      few.push_back({.slot = tokens_only[b], .tokens = next[b], .wanted = wants ? Wanted::Last : Wanted::Token});
      all.push_back({.slot = with_logits[b], .tokens = next[b]});
    }
    const auto drawn = engine.run(few), shown = engine.run(all);
    for (std::size_t b = 0; b < kSlots; ++b) {
      const auto logits = last_logits(shown.entries[b]);
      const auto best = static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
      if (few[b].wanted == Wanted::Token) {
        ASSERT_EQ(drawn.entries[b].token, best) << "slot " << b << ", round " << round;
      }
      next[b] = {best};
    }
  }
  for (std::size_t b = 0; b < kSlots; ++b) {
    EXPECT_EQ(engine.position(tokens_only[b]), engine.position(with_logits[b]));
    EXPECT_EQ(engine.snapshot(tokens_only[b]).parts, engine.snapshot(with_logits[b]).parts) << "slot " << b;
  }
}

// Tokens and log-probabilities drawn by the engine equal those a Sampler draws from the engine's logits on the host, in
// passes that mix samplers, greedy tokens and logits, for prompts and single tokens.
inline void check_sampled_tokens(Stream& stream, EngineOptions options, const StoredModel& family = engine_family()) {
  options.deterministic = true;
  Engine engine(family, stream, options);
  const auto tiers = tiers_of(engine.config());
  const std::vector<SamplingOptions> sampling = {
      {.temperature = 1, .seed = 3},
      {.temperature = 0.8, .top_k = 40, .top_p = 0.9, .seed = 4},
      {.temperature = 1, .min_p = 0.2, .repetition_penalty = 1.5, .repetition_window = 12, .seed = 5},
      {},
      {.repetition_penalty = 2},
      {.temperature = 1.5, .top_p = 0.5, .seed = 6}};
  const std::vector<LogitChange> changes = {{.token = 1, .bias = 2}, {.token = 17, .bias = 1, .penalty = 3}};
  constexpr std::size_t kSlots = 11;
  std::vector<Slot> drawing, showing;
  std::vector<Sampler> engines, hosts;
  std::vector<std::vector<std::int32_t>> next;
  for (std::size_t b = 0; b < kSlots; ++b) {
    drawing.push_back(engine.open(tiers[b < 8 ? 4 : 7]));
    showing.push_back(engine.open(tiers[b < 8 ? 4 : 7]));
    engines.emplace_back(sampling[b % sampling.size()]);
    hosts.emplace_back(sampling[b % sampling.size()]);
    next.push_back(random_tokens(3 + b, engine.config().vocab_size, b));
  }
  int rounds_of_texts = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<Chunk> drawn_chunks, shown_chunks;
    for (std::size_t b = 0; b < kSlots; ++b) {
      Chunk chunk{.slot = drawing[b], .tokens = next[b], .wanted = Wanted::Token, .sampler = &engines[b]};
      if (b % 3 == 1) chunk.changes = changes;
      chunk.alternatives = static_cast<std::int32_t>(b % 4) - 1;
      if (round % 4 == 1 && b == 2) chunk = {.slot = drawing[b], .tokens = next[b]};  // this slot wants logits
      if (round % 4 == 2 && b == 0) next[b].resize(3, next[b][0]), chunk.tokens = next[b];
      drawn_chunks.push_back(chunk);
      shown_chunks.push_back({.slot = showing[b], .tokens = next[b]});
    }
    const auto drawn = engine.run(drawn_chunks), shown = engine.run(shown_chunks);
    for (std::size_t b = 0; b < kSlots; ++b) {
      const auto logits = last_logits(shown.entries[b]);
      const auto& chunk = drawn_chunks[b];
      const auto& entry = drawn.entries[b];
      const auto token = hosts[b].draw(logits, chunk.changes);
      hosts[b].see(token);
      if (chunk.wanted == Wanted::Token) {
        ASSERT_EQ(entry.token, token) << "slot " << b << ", round " << round;
        std::vector<DrawnToken> top(static_cast<std::size_t>(std::max(0, chunk.alternatives)));
        const auto scored = score_token(logits, token, top);
        if (chunk.alternatives >= 0) {
          EXPECT_FLOAT_EQ(entry.logprob, scored.logprob);
        }
        ASSERT_EQ(entry.top.size(), top.size());
        for (std::size_t n = 0; n < top.size(); ++n) {
          EXPECT_EQ(entry.top[n].token, top[n].token) << "slot " << b << ", round " << round << ", place " << n;
          EXPECT_FLOAT_EQ(entry.top[n].logprob, top[n].logprob);
        }
        ++rounds_of_texts;
      } else {
        EXPECT_TRUE(same_bits(last_logits(entry), logits));
        EXPECT_EQ(engines[b].draw(last_logits(entry), chunk.changes), token);
        engines[b].see(token);
      }
      EXPECT_EQ(engines[b].state().position, hosts[b].state().position);
      EXPECT_EQ(engines[b].state().recent, hosts[b].state().recent);
      next[b] = {token};
    }
  }
  EXPECT_EQ(rounds_of_texts, 40 * static_cast<int>(kSlots) - 10);
  for (std::size_t b = 0; b < kSlots; ++b)
    EXPECT_EQ(engine.snapshot(drawing[b]).parts, engine.snapshot(showing[b]).parts) << "slot " << b;
}

// With mixed_tiers, passes over slots of ten tiers agree to rounding with a pass per tier.
inline void check_mixed_tiers(Stream& stream, EngineOptions options, double bound,
                              const StoredModel& family = engine_family()) {
  Engine apart(family, stream, options);
  options.mixed_tiers = true;
  Engine together(family, stream, options);
  const auto tiers = tiers_of(together.config());
  constexpr std::size_t kSlots = 23;
  std::vector<Slot> a, b;
  for (std::size_t i = 0; i < kSlots; ++i) {
    a.push_back(apart.open(tiers[i % tiers.size()]));
    b.push_back(together.open(tiers[i % tiers.size()]));
  }
  Rng rng(5);
  for (int round = 0; round < 12; ++round) {
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<Chunk> first, second;
    for (std::size_t i = 0; i < kSlots; ++i) {
      // Some slots get prompts, also beside single tokens of others.
      tokens.push_back(random_tokens(round == 0 || rng.below(8) == 0 ? 2 + rng.below(70) : 1, 300, rng.next()));
    }
    for (std::size_t i = 0; i < kSlots; ++i) {
      first.push_back({.slot = a[i], .tokens = tokens[i]});
      second.push_back({.slot = b[i], .tokens = tokens[i]});
    }
    const auto exact = apart.run(first), found = together.run(second);
    for (std::size_t i = 0; i < kSlots; ++i) {
      const auto x = last_logits(exact.entries[i]), y = last_logits(found.entries[i]);
      float largest = 0, error = 0;
      for (std::size_t k = 0; k < x.size(); ++k) {
        largest = std::max(largest, std::abs(x[k]));
        error = std::max(error, std::abs(x[k] - y[k]));
      }
      ASSERT_LE(error, bound * largest) << tiers[i % tiers.size()].name << ", round " << round;
    }
  }
  // Greedy tokens take the same mixed pass.
  std::vector<std::int32_t> last(kSlots, 7);
  std::vector<Chunk> wanted, drawn;
  for (std::size_t i = 0; i < kSlots; ++i) {
    wanted.push_back({.slot = a[i], .tokens = {&last[i], 1}});
    drawn.push_back({.slot = b[i], .tokens = {&last[i], 1}, .wanted = Wanted::Token});
  }
  const auto exact = apart.run(wanted), found = together.run(drawn);
  for (std::size_t i = 0; i < kSlots; ++i) {
    const auto x = last_logits(exact.entries[i]);
    const float best = *std::ranges::max_element(x);
    EXPECT_GE(x[static_cast<std::size_t>(found.entries[i].token)], best - 2 * bound * std::abs(best)) << i;
    EXPECT_EQ(apart.position(a[i]), together.position(b[i]));
  }
}

// Ten thousand single tokens agree with the same tokens in chunks, and the states have the same size.
inline void check_no_drift(Stream& stream, EngineOptions options, double bound,
                           const StoredModel& family = engine_family()) {
  Engine engine(family, stream, options);
  constexpr std::size_t kTokens = 10000, kLooks = 10;
  const auto tokens = random_tokens(kTokens, engine.config().vocab_size, 12);
  for (const char* name : {"T1", "T10"}) {
    const auto tier = find_tier(engine.config(), name);
    const auto steps = engine.open(tier), chunks = engine.open(tier);
    std::vector<double> errors;
    for (std::size_t look = 0; look < kLooks; ++look) {
      const auto part = std::span(tokens).subspan(look * kTokens / kLooks, kTokens / kLooks);
      const Chunk whole{.slot = chunks, .tokens = part};
      const auto exact = last_logits(engine.run({&whole, 1}).entries[0]);
      std::vector<float> found;
      for (std::size_t i = 0; i < part.size(); ++i) {
        const Chunk one{.slot = steps,
                        .tokens = part.subspan(i, 1),
                        .wanted = i + 1 == part.size() ? Wanted::Last : Wanted::Nothing};
        const auto outputs = engine.run({&one, 1});
        if (one.wanted == Wanted::Last) found = last_logits(outputs.entries[0]);
      }
      double largest = 0, error = 0;
      for (std::size_t k = 0; k < exact.size(); ++k) {
        largest = std::max(largest, std::abs(static_cast<double>(exact[k])));
        error = std::max(error, std::abs(static_cast<double>(exact[k]) - static_cast<double>(found[k])));
      }
      errors.push_back(error / largest);
    }
    EXPECT_LE(*std::ranges::max_element(errors), bound) << name;
    fmt::print("{}: single tokens against chunks, {:.1e} after {} tokens, {:.1e} after {}\n", name, errors.front(),
               kTokens / kLooks, errors.back(), kTokens);
    EXPECT_EQ(engine.state_bytes(steps), engine.state_bytes(chunks)) << name;
  }
}

// Rounded states, windows in eight bits or recurrent states in bf16: less memory, and logits within `tolerance` of
// plain ones at every position, whatever the split of the text; states fork, roll back and restore as plain ones do.
inline void check_rounded_states(Stream& stream, EngineOptions options, bool EngineOptions::*rounded, double tolerance,
                                 const StoredModel& family = engine_family()) {
  auto coded = options;
  coded.*rounded = true;
  Engine plain(family, stream, options), engine(family, stream, coded);
  const auto tokens = random_tokens(160, engine.config().vocab_size, 5);
  const auto tier = find_tier(engine.config(), "T7");
  const auto distance = [](const std::vector<float>& x, const std::vector<float>& exact) {
    double apart = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      apart += std::pow(static_cast<double>(x[i]) - static_cast<double>(exact[i]), 2);
      size += std::pow(static_cast<double>(exact[i]), 2);
    }
    return std::sqrt(apart / size);
  };
  const auto feed = [&](Engine& with, Slot slot, std::size_t begin, std::size_t end) {
    const Chunk chunk{.slot = slot, .tokens = std::span(tokens).subspan(begin, end - begin)};
    return last_logits(with.run({&chunk, 1}).entries[0]);
  };
  const auto there = plain.open(tier), whole = engine.open(tier), split = engine.open(tier);
  EXPECT_LT(engine.state_bytes(whole), plain.state_bytes(there));
  feed(plain, there, 0, 90);
  feed(engine, whole, 0, 90);
  feed(engine, split, 0, 1);
  feed(engine, split, 1, 60);
  feed(engine, split, 60, 90);
  double worst = 0;
  for (std::size_t i = 90; i < tokens.size(); ++i) {
    const auto exact = feed(plain, there, i, i + 1);
    for (const auto slot : {whole, split}) worst = std::max(worst, distance(feed(engine, slot, i, i + 1), exact));
  }
  EXPECT_LE(worst, tolerance);
  EXPECT_GT(worst, 1e-5) << "nothing is rounded";
  coded.deterministic = true;
  check_fork_rewind_restore(stream, coded, family);
  check_packed(stream, coded, family);
}

}  // namespace essh
