#pragma once
#include "essh/decode/speculation.h"
#include "tests/decode/engine_checks.h"

// Texts with and without a draft, for any device.
namespace essh {

inline std::vector<std::int32_t> plain_text(Engine& engine, const Tier& tier, std::span<const std::int32_t> prompt,
                                            std::size_t count, const SamplingOptions& sampling = {}) {
  Session session(engine, tier);
  session.feed(prompt);
  Sampler sampler(sampling);
  for (const auto token : prompt) sampler.see(token);
  std::vector<std::int32_t> text;
  while (text.size() < count) {
    text.push_back(sampler.draw(session.logits()));
    sampler.see(text.back());
    session.feed({&text.back(), 1});
  }
  return text;
}

struct DraftedRun {
  std::vector<std::int32_t> text;
  SpeculationCounts counts;
};

inline DraftedRun drafted_text(Engine& engine, const Tier& tier, const Tier& draft, const SpeculationOptions& options,
                               std::span<const std::int32_t> prompt, std::size_t count,
                               const SamplingOptions& sampling = {}) {
  Session session(engine, tier, {.rewind = options.most});
  SpeculativeText drafted(session, draft, options);
  drafted.feed(prompt);
  Sampler sampler(sampling);
  for (const auto token : prompt) sampler.see(token);
  DraftedRun run;
  while (run.text.size() < count) {
    const auto limit = static_cast<Index>(count - run.text.size());
    const auto found = drafted.next(sampler, limit);
    EXPECT_GE(std::ssize(found), 1);
    EXPECT_LE(std::ssize(found), limit);
    EXPECT_LE(std::ssize(found), options.most + 1);
    for (const auto token : found) sampler.see(token);
    run.text.insert(run.text.end(), found.begin(), found.end());
  }
  run.counts = drafted.counts();
  return run;
}

}  // namespace essh
