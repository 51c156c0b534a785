#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "essh/evaluate/frontier.h"

namespace essh {

// Limits on what a model may cost on this machine; 0: none.
struct Budget {
  std::uint64_t memory = 0;      // weights, states and caches of `sequences`
  std::uint64_t file = 0;        // weights of an export
  double decode_ms = 0;          // of a token, at most
  double prefill_rate = 0;       // prompt tokens per second, at least
  std::uint64_t parameters = 0;  // of an export
  Index sequences = 1;

  bool limits() const { return memory || file || decode_ms > 0 || prefill_rate > 0 || parameters; }
};

template <class Visitor>
void fields(Visitor& visit, Budget& b) {
  visit("memory", b.memory, Field{.help = "bytes of weights, states and caches"});
  visit("file", b.file, Field{.help = "bytes of an export's weights"});
  visit("decode_ms", b.decode_ms, Field{.help = "per token", .min = 0});
  visit("prefill_tokens_per_second", b.prefill_rate, Field{.help = "at least", .min = 0});
  visit("parameters", b.parameters, Field{.help = "of an export"});
  visit("sequences", b.sequences, Field{.help = "at once", .min = 1});
}

// Memory of a point with some sequences: weights, states and caches as the engine holds them, or the growth of the
// process, if that is more.
std::uint64_t memory_of(const FrontierPoint& point, Index sequences);
// "23.1 ms > 20 ms, 412 MB > 300 MB"; empty if the point keeps within the budget.
std::string excess(const FrontierPoint& point, const Budget& budget);

// The capacities of the map from budgets xi, smallest first, each once: named tiers by their names, others by their
// sizes. A model of fixed capacity has one.
std::vector<Tier> planned_capacities(const ModelConfig& config);

// Measures some capacities side by side, in one round or in all.
using MeasureCapacities = std::function<std::vector<FrontierPoint>(const std::vector<Tier>&, bool quick)>;

struct Plan {
  std::vector<FrontierPoint> points;  // all that were measured, smallest first
  std::optional<std::size_t> chosen;  // the largest that keeps within the budget
};

// Finds the largest capacity within a budget, assuming that costs grow with capacity. A binary search with single
// rounds finds where the limits are reached; the capacities there are measured again side by side, and all rounds
// decide. The largest capacity is always measured.
Plan make_plan(const std::vector<Tier>& capacities, const Budget& budget, const MeasureCapacities& measure);

}  // namespace essh
