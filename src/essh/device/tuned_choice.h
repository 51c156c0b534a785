#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "essh/tensor/matrix.h"

namespace essh {

// Autotuned choices by name: algorithms of products, launch parameters of kernels.
using TunedChoices = std::map<std::string, std::string>;

// One launch with a candidate for a launch parameter.
struct Trial {
  std::uint64_t fingerprint;  // of the bits of all results
  double cost;                // time, in any unit
};

// The stored launch parameter, if it is one of the candidates.
std::optional<Index> stored_choice(const TunedChoices& choices, const std::string& name,
                                   std::span<const Index> candidates);

// The stored launch parameter, or the fastest candidate of a few rounds of trials, which is then stored.
//
// candidates[0] is the default; the kernel tests compare its results with the scalar reference. A launch parameter
// never changes a bit: a candidate whose fingerprint differs from the default's, or whose trial throws, is refused with
// a warning. A candidate has to be faster than the default by `least_gain` to replace it.
Index tuned_choice(TunedChoices& choices, const std::string& name, std::span<const Index> candidates,
                   const std::function<Trial(Index candidate)>& attempt, double least_gain = 0.02);

}  // namespace essh
