#include "essh/evaluate/speculation_rate.h"

#include <algorithm>
#include <chrono>

namespace essh {
namespace {
using Clock = std::chrono::steady_clock;

double ms_per_token(Clock::time_point start, Index tokens) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count() / static_cast<double>(tokens);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double plain_ms(Engine& engine, const Tier& tier, std::span<const std::int32_t> prompt, const SpeculationBench& bench) {
  Session session(engine, tier);
  session.feed(prompt);
  Sampler sampler(bench.sampling);
  for (const auto token : prompt) sampler.see(token);
  auto token = sampler.draw(session.logits());
  const auto start = Clock::now();
  if (sampler.takes_likeliest()) {
    const auto slot = session.slot();
    engine.generate({&slot, 1}, {&token, 1}, bench.steps);
  } else {
    for (Index i = 0; i < bench.steps; ++i) {
      sampler.see(token);
      session.feed({&token, 1});
      token = sampler.draw(session.logits());
    }
  }
  return ms_per_token(start, bench.steps);
}

}  // namespace

double SpeculationRates::tokens_per_pass() const {
  return static_cast<double>(tokens) / static_cast<double>(counts.passes);
}

double SpeculationRates::plain_median_ms() const {
  return median(plain_ms);
}

double SpeculationRates::draft_median_ms() const {
  return median(draft_ms);
}

SpeculationRates measure_speculation(Engine& engine, const Tier& tier, const Tier& draft,
                                     std::span<const std::int32_t> text, const SpeculationBench& bench) {
  ESSH_ASSERT(std::ssize(text) >= bench.depth && bench.depth > 0 && bench.steps > 0 && bench.repetitions > 0);
  SpeculationRates rates;
  for (int i = 0; i < bench.repetitions; ++i) {
    const auto places = text.size() / static_cast<std::size_t>(bench.depth);
    const auto prompt = text.subspan(static_cast<std::size_t>(i) % places * static_cast<std::size_t>(bench.depth),
                                     static_cast<std::size_t>(bench.depth));
    rates.plain_ms.push_back(plain_ms(engine, tier, prompt, bench));

    Session session(engine, tier, {.rewind = bench.draft_tokens});
    SpeculativeText drafted(session, draft, {.most = bench.draft_tokens});
    drafted.feed(prompt);
    Sampler sampler(bench.sampling);
    for (const auto token : prompt) sampler.see(token);
    sampler.see(drafted.next(sampler, 1)[0]);
    const auto start = Clock::now();
    Index drawn = 0;
    while (drawn < bench.steps) {
      const auto found = drafted.next(sampler, bench.steps - drawn);
      for (const auto token : found) sampler.see(token);
      drawn += std::ssize(found);
    }
    rates.draft_ms.push_back(ms_per_token(start, drawn));
    rates.tokens += drawn;
    const auto& counts = drafted.counts();
    rates.counts.passes += counts.passes;
    rates.counts.drafted += counts.drafted;
    rates.counts.checked += counts.checked;
    rates.counts.accepted += counts.accepted;
    rates.draft_state_bytes = drafted.draft_state_bytes();
  }
  return rates;
}

}  // namespace essh
