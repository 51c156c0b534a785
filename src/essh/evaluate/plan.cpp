#include "essh/evaluate/plan.h"

#include <algorithm>
#include <map>

#include "essh/base/units.h"

namespace essh {

std::uint64_t memory_of(const FrontierPoint& point, Index sequences) {
  const auto& cost = point.latency;
  const auto one = std::max(cost.weight_bytes + cost.session_bytes, cost.resident_bytes);
  return one + static_cast<std::uint64_t>(sequences - 1) * cost.session_bytes;
}

std::string excess(const FrontierPoint& point, const Budget& budget) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const auto bytes = [](std::uint64_t count) { return format_bytes(static_cast<double>(count)); };
  if (const auto memory = memory_of(point, budget.sequences); budget.memory > 0 && memory > budget.memory)
    add(fmt::format("{} > {}", bytes(memory), bytes(budget.memory)));
  if (const auto file = static_cast<std::uint64_t>(point.file_bytes); budget.file > 0 && file > budget.file)
    add(fmt::format("file of {} > {}", bytes(file), bytes(budget.file)));
  if (budget.decode_ms > 0 && point.latency.decode_ms > budget.decode_ms)
    add(fmt::format("{:.4g} ms > {:.4g} ms", point.latency.decode_ms, budget.decode_ms));
  if (budget.prefill_rate > 0 && point.latency.prefill_rate < budget.prefill_rate)
    add(fmt::format("{:.4g} tok/s < {:.4g}", point.latency.prefill_rate, budget.prefill_rate));
  if (const auto count = static_cast<std::uint64_t>(point.parameters);
      budget.parameters > 0 && count > budget.parameters)
    add(fmt::format("{} parameters > {}", format_count(static_cast<double>(count)),
                    format_count(static_cast<double>(budget.parameters))));
  return text;
}

std::vector<Tier> planned_capacities(const ModelConfig& config) {
  const auto named = tiers_of(config);
  if (!config.elastic.is_family()) return named;
  // The presets have up to 119 capacities. The map of a family with thousands is sampled.
  constexpr int kSteps = 1 << 14;
  std::vector<double> budgets = config.elastic.tiers;
  for (int i = 1; i <= kSteps; ++i) budgets.push_back(static_cast<double>(i) / kSteps);
  std::ranges::sort(budgets);
  std::vector<Tier> all;
  for (const double budget : budgets) {
    const auto capacity = capacity_at(config, budget);
    if (!all.empty() && all.back().capacity == capacity) continue;
    const auto known = std::ranges::find(named, capacity, &Tier::capacity);
    all.push_back(known != named.end() ? *known : Tier{sizes_of(config, capacity), budget, capacity});
  }
  return all;
}

Plan make_plan(const std::vector<Tier>& capacities, const Budget& budget, const MeasureCapacities& measure) {
  ESSH_ASSERT(!capacities.empty());
  std::map<std::size_t, FrontierPoint> known;
  const auto ask = [&](std::size_t first, std::size_t last, bool quick) {
    std::vector<Tier> tiers(capacities.begin() + static_cast<std::ptrdiff_t>(first),
                            capacities.begin() + static_cast<std::ptrdiff_t>(last) + 1);
    auto points = measure(tiers, quick);
    for (std::size_t i = first; i <= last; ++i) known.insert_or_assign(i, std::move(points[i - first]));
  };
  const auto fits = [&](std::size_t i) { return excess(known.at(i), budget).empty(); };

  // Capacities below `low` fit, those from `high` on do not, as far as single rounds tell.
  std::size_t low = 0, high = capacities.size();
  while (low < high) {
    const auto middle = low == 0 && high == capacities.size() ? high - 1 : (low + high) / 2;  // the largest first
    ask(middle, middle, true);
    if (fits(middle))
      low = middle + 1;
    else
      high = middle;
  }
  // All rounds of the last that fits and of its neighbours, then of one more at a time until one fits and the next does
  // not.
  const auto last = capacities.size() - 1;
  const std::size_t found = low == 0 ? 0 : low - 1;
  std::size_t first_sure = found == 0 ? 0 : found - 1, last_sure = std::min(found + 1, last);
  ask(first_sure, last_sure, false);
  const auto none = capacities.size();
  auto chosen = none;
  for (;;) {
    chosen = none;
    for (auto i = first_sure; i <= last_sure; ++i) {
      if (fits(i)) chosen = i;
    }
    if (chosen == last_sure && last_sure < last)
      ++last_sure, ask(last_sure, last_sure, false);
    else if (chosen == none && first_sure > 0)
      --first_sure, ask(first_sure, first_sure, false);
    else
      break;
  }

  Plan plan;
  for (auto& [i, point] : known) {
    if (i == chosen) plan.chosen = plan.points.size();
    plan.points.push_back(std::move(point));
  }
  return plan;
}

}  // namespace essh
