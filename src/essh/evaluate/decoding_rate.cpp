#include "essh/evaluate/decoding_rate.h"

#include <algorithm>
#include <chrono>

#include "essh/base/clock.h"
#include "essh/base/memory_reader.h"
#include "essh/base/rng.h"
#include "essh/kernels/clear.h"
#include "essh/kernels/square_sum.h"
#include "essh/model/mixer.h"
#include "essh/model/slice.h"

namespace essh {
namespace {
using Clock = std::chrono::steady_clock;

// Of a timed step, on average. Recurrent state is read and written; of a cache, the visible rows are read.
double state_traffic(const ModelConfig& config, const StateFormats& formats, const DecodingBench& bench) {
  const Index depth = bench.depth + bench.warmup + (bench.repetitions * Index{bench.steps} + 1) / 2;
  double bytes = 0;
  for (const auto& part : model_state(config, formats)) {
    const auto row = static_cast<double>(stored_bytes(part.format, part.columns));
    if (part.kind == StatePart::Kind::Fixed)
      bytes += 2 * row;
    else
      bytes += row * static_cast<double>(part.window > 0 ? std::min(part.window, depth) : depth);
  }
  return bytes;
}

StateFormats formats_of(const Engine& engine, const EngineOptions& options) {
  return {.rows = engine.precision() == Precision::BFloat16 ? Format::BF16 : Format::F32,
          .coded_windows = options.fp8_windows,
          .narrow_states = options.bf16_states};
}

void read(Engine& engine, Slot slot, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return;
  const Chunk chunk{.slot = slot, .tokens = tokens, .wanted = Wanted::Nothing};
  engine.run({&chunk, 1});
}

}  // namespace

double DecodingRates::median_ms() const {
  auto sorted = step_ms;
  std::ranges::sort(sorted);
  return sorted[sorted.size() / 2];
}

DecodingRates measure_decoding(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine_options,
                               const DecodingBench& bench) {
  ESSH_ASSERT(bench.batch > 0 && bench.depth >= 0 && bench.steps > 0 && bench.repetitions > 0);
  // On a GPU an engine packs the weights of a tier anyway.
  const bool packed = stream.device() != Device::Cpu && tier.capacity == full_capacity(model.config());
  Engine engine(packed ? model : model.cut(tier.capacity), stream, engine_options);
  const Tier alone{"full", 1, tier.capacity};
  Rng rng(1);
  const auto random_token = [&] {
    return static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(engine.config().vocab_size)));
  };
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(bench.depth)), first;
  std::ranges::generate(prompt, random_token);
  // All sequences are copies of one: speed does not depend on their tokens.
  std::vector<Slot> slots = {engine.open(alone)};
  read(engine, slots[0], prompt);
  while (std::ssize(slots) < bench.batch) slots.push_back(engine.fork(slots[0]));
  for (std::size_t i = 0; i < slots.size(); ++i) first.push_back(random_token());

  DecodingRates result;
  engine.generate(slots, first, bench.warmup);
  for (int i = 0; i < bench.repetitions; ++i) {
    stream.wait();
    const auto start = Clock::now();
    engine.generate(slots, first, bench.steps);
    result.step_ms.push_back(1e3 * seconds_since(start) / bench.steps);
  }
  result.weights = engine.step_weights(alone, bench.batch);
  result.state_bytes = engine.state_bytes(slots[0]);
  result.moved_bytes =
      static_cast<double>(result.weights.bytes) +
      static_cast<double>(bench.batch) * state_traffic(engine.config(), formats_of(engine, engine_options), bench);
  return result;
}

DecodingRates measure_mixed_decoding(const StoredModel& model, const std::vector<Tier>& tiers, Stream& stream,
                                     EngineOptions engine_options, const DecodingBench& bench) {
  ESSH_ASSERT(!tiers.empty() && bench.batch > 0 && bench.depth >= 0 && bench.steps > 0 && bench.repetitions > 0);
  engine_options.mixed_tiers = true;
  Engine engine(model, stream, engine_options);
  const auto formats = formats_of(engine, engine_options);
  Rng rng(1);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(bench.depth));
  for (auto& token : prompt)
    token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(engine.config().vocab_size)));
  DecodingRates result;
  std::vector<Slot> slots;
  for (Index b = 0; b < bench.batch; ++b) {
    const auto t = static_cast<std::size_t>(b) % tiers.size();
    if (static_cast<std::size_t>(b) >= tiers.size()) {
      slots.push_back(engine.fork(slots[t]));
    } else {
      slots.push_back(engine.open(tiers[t]));
      read(engine, slots.back(), prompt);
      const auto weights = engine.step_weights(tiers[t], bench.batch);
      if (weights.bytes > result.weights.bytes) result.weights = weights;
    }
    result.state_bytes += engine.state_bytes(slots.back()) / static_cast<std::size_t>(bench.batch);
    result.moved_bytes += state_traffic(slice(model.config(), tiers[t].capacity), formats, bench);
  }
  result.moved_bytes += static_cast<double>(result.weights.bytes);
  std::vector<std::int32_t> last(slots.size(), 0);
  std::vector<Chunk> chunks;
  for (std::size_t b = 0; b < slots.size(); ++b)
    chunks.push_back({.slot = slots[b], .tokens = {&last[b], 1}, .wanted = Wanted::Token});
  Outputs outputs;
  const auto steps = [&](int count) {
    for (int i = 0; i < count; ++i) {
      engine.run(chunks, outputs);
      for (std::size_t b = 0; b < last.size(); ++b) last[b] = outputs.entries[b].token;
    }
  };
  steps(bench.warmup);
  for (int i = 0; i < bench.repetitions; ++i) {
    const auto start = Clock::now();
    steps(bench.steps);
    result.step_ms.push_back(1e3 * seconds_since(start) / bench.steps);
  }
  return result;
}

double measure_read_bandwidth(Stream& stream) {
  if (auto* const cpu = stream.cpu()) return measure_read_bandwidth(cpu->pool()).bytes_per_second;
  constexpr Index kElements = Index{1} << 29;
  constexpr int kPasses = 10;
  const Array<float> memory(stream.device(), kElements, "memory that is read");
  const Array<double> sum(stream.device(), 1, "its sum");
  clear(stream, memory.view());
  double best = 0;
  for (int i = 0; i < kPasses; ++i) {
    stream.wait();
    const auto start = Clock::now();
    launch(stream, SquareSum<float>{.x = memory.view(), .sum = sum.data()});
    stream.wait();
    best = std::max(best, static_cast<double>(memory.bytes()) / seconds_since(start));
  }
  return best;
}

}  // namespace essh
