#include "essh/evaluate/latency.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "essh/base/rng.h"

namespace essh {
namespace {
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The value below which `share` of the samples lie; sorts them.
double quantile(std::vector<double>& samples, double share) {
  std::ranges::sort(samples);
  return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
}

// Resident bytes of this process, without memory that was freed but not given back; 0 when unknown.
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
  Rng rng(1);
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(tokens));
  for (auto& token : prompt) token = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary)));
  return prompt;
}

}  // namespace

TierLatency measure_latency(const StoredModel& model, const Tier& tier, Stream& stream, EngineOptions engine_options,
                            const LatencyOptions& options) {
  ESSH_ASSERT(options.depth > 0 && options.steps > 0 && options.prompts > 0);
  TierLatency result;
  const auto before = resident_memory();
  Engine engine(model.cut(tier.capacity), stream, engine_options);
  const Tier alone{"full", 1, tier.capacity};
  Session session(engine, alone);
  const auto prompt = random_prompt(options.depth, engine.config().vocab_size);

  std::vector<double> rates;
  for (int i = 0; i <= options.prompts; ++i) {
    session.reset();
    const auto start = Clock::now();
    session.feed(prompt);
    if (i > 0) rates.push_back(static_cast<double>(options.depth) / seconds_since(start));
  }
  std::vector<double> times;
  for (int i = -options.warmup; i < options.steps; ++i) {
    const auto& token = prompt[static_cast<std::size_t>((i + options.warmup) % options.depth)];
    const auto start = Clock::now();
    session.feed({&token, 1});
    if (i >= 0) times.push_back(1e3 * seconds_since(start));
  }

  result.decode_ms = quantile(times, 0.5);
  result.decode_ms_low = quantile(times, 0.1);
  result.decode_ms_high = quantile(times, 0.9);
  result.prefill_rate = quantile(rates, 0.5);
  result.weight_bytes = engine.weight_bytes(alone);
  result.session_bytes = session.state_bytes();
  const auto after = resident_memory();
  result.resident_bytes = after > before ? after - before : 0;
  return result;
}

}  // namespace essh
