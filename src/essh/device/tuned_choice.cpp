#include "essh/device/tuned_choice.h"

#include <algorithm>
#include <limits>

#include "essh/base/error.h"
#include "essh/base/log.h"

namespace essh {
namespace {

constexpr int kRounds = 5;

}  // namespace

std::optional<Index> stored_choice(const TunedChoices& choices, const std::string& name,
                                   std::span<const Index> candidates) {
  const auto stored = choices.find(name);
  if (stored == choices.end()) return {};
  for (const Index candidate : candidates) {
    if (stored->second == std::to_string(candidate)) return candidate;
  }
  return {};
}

Index tuned_choice(TunedChoices& choices, const std::string& name, std::span<const Index> candidates,
                   const std::function<Trial(Index)>& attempt, double least_gain) {
  if (const auto stored = stored_choice(choices, name, candidates)) return *stored;
  constexpr double kRefused = std::numeric_limits<double>::infinity();
  std::vector<double> cost(candidates.size(), std::numeric_limits<double>::max());
  std::optional<std::uint64_t> wanted;
  // Rounds alternate between the candidates, so that a change of the clock rate meets all of them.
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (cost[i] == kRefused) continue;
      try {
        const auto trial = attempt(candidates[i]);
        if (!wanted) wanted = trial.fingerprint;
        if (trial.fingerprint != *wanted) fail(ErrorKind::Internal, "other results than with {}", candidates[0]);
        cost[i] = std::min(cost[i], trial.cost);
      } catch (const Error& error) {
        if (i == 0) throw;
        log::warn("{}: {} is not used ({})", name, candidates[i], error.what());
        cost[i] = kRefused;
      }
    }
  }
  const auto best = static_cast<std::size_t>(std::ranges::min_element(cost) - cost.begin());
  const Index choice = candidates[cost[best] <= (1 - least_gain) * cost[0] ? best : 0];
  choices[name] = std::to_string(choice);
  return choice;
}

}  // namespace essh
