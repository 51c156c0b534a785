#include "essh/evaluate/latency.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "essh/base/clock.h"
#include "essh/base/rng.h"

namespace essh {
namespace {
using Clock = std::chrono::steady_clock;

// The value below which `share` of the samples lie; sorts them.
double quantile(std::vector<double>& samples, double share) {
  std::ranges::sort(samples);
  return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
}

// Resident bytes of this process without freed memory that the allocator holds; 0: unknown.
std::uint64_t resident_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::vector<std::int32_t> random_prompt(Index tokens, Index vocabulary) {
  Rng rng(kLatencySeed);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens));
  for (auto& token : prompt) token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary)));
  return prompt;
}

// Times of one tier so far.
struct Times {
  std::vector<std::vector<double>> steps;  // ms, by round
  double prefill_rate = 0;
};

void run_round(const StoredModel& model, const Tier& tier, int round, Stream& stream, EngineOptions engine_options,
               const LatencyOptions& options, Times& times, TierLatency& result) {
  const auto before = resident_memory();
  Engine engine(model.cut(tier.capacity), stream, engine_options);
  const Tier alone{"full", 1, tier.capacity};
  Session session(engine, alone);
  const auto prompt = random_prompt(options.depth, engine.config().vocab_size);
  session.feed(prompt);
  session.reset();
  auto start = Clock::now();
  session.feed(prompt);
  times.prefill_rate = std::max(times.prefill_rate, static_cast<double>(options.depth) / seconds_since(start));

  // Steps are divided evenly; the first rounds take the remainder.
  const int steps = std::max(1, (options.steps + options.rounds - 1 - round) / options.rounds);
  auto& timed = times.steps.emplace_back();
  for (int i = -options.warmup; i < steps; ++i) {
    const auto& token = prompt[static_cast<std::size_t>((i + options.warmup) % options.depth)];
    start = Clock::now();
    session.feed({&token, 1});
    if (i >= 0) timed.push_back(1e3 * seconds_since(start));
  }
  result.weight_bytes = engine.weight_bytes(alone);
  result.session_bytes = session.state_bytes();
  const auto after = resident_memory();
  // The minimum: the first round also allocates what the process keeps, such as thread stacks.
  const auto grown = after > before ? after - before : 0;
  result.resident_bytes = round == 0 ? grown : std::min(result.resident_bytes, grown);
}

}  // namespace

double robust_minimum(std::span<const std::vector<double>> rounds) {
  double least = INFINITY;
  for (auto round : rounds) least = std::min(least, quantile(round, 0.5));
  return least;
}

std::vector<TierLatency> measure_latencies(const StoredModel& model, std::span<const Tier> tiers, Stream& stream,
                                           EngineOptions engine, const LatencyOptions& options,
                                           const LatencyProgress& progress) {
  ESSH_ASSERT(options.depth > 0 && options.steps > 0 && options.rounds > 0);
  std::vector<Times> times(tiers.size());
  std::vector<TierLatency> results(tiers.size());
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t t = 0; t < tiers.size(); ++t) {
      if (progress) progress(round, tiers[t]);
      run_round(model, tiers[t], round, stream, engine, options, times[t], results[t]);
    }
  }
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    std::vector<double> all;
    for (const auto& round : times[t].steps) all.insert(all.end(), round.begin(), round.end());
    results[t].decode_ms = robust_minimum(times[t].steps);
    results[t].decode_ms_low = quantile(all, 0.1);
    results[t].decode_ms_high = quantile(all, 0.9);
    results[t].prefill_rate = times[t].prefill_rate;
  }
  return results;
}

}  // namespace essh
