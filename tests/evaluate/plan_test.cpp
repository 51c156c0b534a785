#include "essh/evaluate/plan.h"

#include <gtest/gtest.h>

#include <set>

#include "essh/base/units.h"
#include "essh/model/config.h"

namespace essh {
namespace {

FrontierPoint point(Index parameters, double ms) {
  FrontierPoint p{.model = "family", .tier = fmt::format("{}", parameters), .parameters = parameters};
  p.file_bytes = 2 * parameters;
  p.latency = {.decode_ms = ms,
               .prefill_rate = 1e6 / ms,
               .weight_bytes = static_cast<std::uint64_t>(4 * parameters),
               .session_bytes = 100};
  return p;
}

// Capacities 1, 2, ... of a family, whose steps take as many ms.
class CostlyFamily {
 public:
  explicit CostlyFamily(int count) {
    for (int i = 1; i <= count; ++i) capacities_.push_back({fmt::format("{}", i), 0, {i, i}});
  }

  // ms to add to all measurements of this kind.
  double quick_error = 0, full_error = 0;

  Plan plan(const Budget& budget) {
    asked_.clear();
    quick_ = 0;
    return make_plan(capacities_, budget, [this](const std::vector<Tier>& tiers, bool quick) {
      quick_ += quick;
      std::vector<FrontierPoint> points;
      for (const auto& tier : tiers) {
        if (!quick) asked_.insert(tier.capacity.ffn);
        points.push_back(
            point(tier.capacity.ffn, static_cast<double>(tier.capacity.ffn) + (quick ? quick_error : full_error)));
      }
      return points;
    });
  }
  std::string chosen(const Budget& budget) {
    const auto found = plan(budget);
    return found.chosen ? found.points[*found.chosen].tier : "none";
  }
  int quick() const { return quick_; }
  const std::set<Index>& asked() const { return asked_; }

 private:
  std::vector<Tier> capacities_;
  std::set<Index> asked_;  // with all rounds
  int quick_ = 0;
};

TEST(Plan, FindsTheLargestWithinEachLimit) {
  CostlyFamily family(100);
  EXPECT_EQ(family.chosen({.decode_ms = 37.5}), "37");
  EXPECT_EQ(family.chosen({.decode_ms = 37}), "37");
  EXPECT_LE(family.quick(), 8);
  EXPECT_EQ(family.asked(), (std::set<Index>{36, 37, 38}));
  EXPECT_EQ(family.chosen({.memory = 500}), "100");
  EXPECT_EQ(family.quick(), 1) << "the largest is tried first";
  EXPECT_EQ(family.chosen({.memory = 499}), "99");
  EXPECT_EQ(family.chosen({.memory = 499, .sequences = 3}), "49") << "three states beside the weights";
  EXPECT_EQ(family.chosen({.file = 21}), "10");
  EXPECT_EQ(family.chosen({.parameters = 5}), "5");
  EXPECT_EQ(family.chosen({.prefill_rate = 1e6 / 12}), "12");
  EXPECT_EQ(family.chosen({.memory = 450, .file = 90, .decode_ms = 60, .parameters = 99}), "45");
  EXPECT_EQ(family.chosen({.decode_ms = 0.5}), "none");
  EXPECT_EQ(family.chosen({.decode_ms = 1}), "1");
  CostlyFamily one(1);
  EXPECT_EQ(one.chosen({.decode_ms = 1}), "1");
  EXPECT_EQ(one.chosen({.decode_ms = 0.9}), "none");
}

// Single rounds mislead in both directions; those with all rounds decide.
TEST(Plan, AllRoundsDecide) {
  CostlyFamily family(100);
  family.quick_error = 5;
  EXPECT_EQ(family.chosen({.decode_ms = 40}), "40");
  family.quick_error = -5;
  EXPECT_EQ(family.chosen({.decode_ms = 40}), "40");
  family.quick_error = 0;
  family.full_error = 200;
  EXPECT_EQ(family.chosen({.decode_ms = 40}), "none");
  EXPECT_TRUE(family.asked().contains(1));
  family.full_error = -200;
  EXPECT_EQ(family.chosen({.decode_ms = 40}), "100");
}

TEST(Plan, PointsAreThoseMeasuredSmallestFirst) {
  CostlyFamily family(100);
  const auto found = family.plan({.decode_ms = 37});
  for (std::size_t i = 1; i < found.points.size(); ++i)
    EXPECT_LT(found.points[i - 1].parameters, found.points[i].parameters);
  for (const auto& p : found.points)
    EXPECT_EQ(excess(p, {.decode_ms = 37}).empty(), p.parameters <= 37) << p.parameters;
}

TEST(Plan, SaysWhatExceedsTheLimits) {
  const auto p = point(1'000'000, 20);
  EXPECT_EQ(excess(p, {.decode_ms = 20}), "");
  EXPECT_EQ(excess(p, {.decode_ms = 19.5}), "20 ms > 19.5 ms");
  EXPECT_EQ(excess(p, {.memory = 3'000'000, .file = 1'500'000}), "4.00 MB > 3.00 MB, file of 2.00 MB > 1.50 MB");
  EXPECT_EQ(excess(p, {.prefill_rate = 60'000}), "5e+04 tok/s < 6e+04");
  auto grown = p;
  grown.latency.resident_bytes = 9'000'000;
  EXPECT_EQ(memory_of(p, 1), 4'000'100u);
  EXPECT_EQ(memory_of(p, 11), 4'001'100u);
  EXPECT_EQ(memory_of(grown, 1), 9'000'000u) << "the process grew by more than its model";
  EXPECT_EQ(memory_of(grown, 11), 9'001'000u);
}

// The map from budgets reaches each of its capacities, in order, and names those that are tiers.
TEST(Plan, CapacitiesAreThoseOfTheMap) {
  for (const auto* name : {"tiny", "370m", "1.5b"}) {
    const auto config = preset(name);
    const auto all = planned_capacities(config);
    ASSERT_GT(all.size(), tiers_of(config).size());
    EXPECT_EQ(all.back().capacity, full_capacity(config));
    for (std::size_t i = 1; i < all.size(); ++i) {
      EXPECT_LE(all[i - 1].capacity.channels, all[i].capacity.channels);
      EXPECT_LE(all[i - 1].capacity.ffn, all[i].capacity.ffn);
      EXPECT_LE(all[i].capacity.ffn - all[i - 1].capacity.ffn, config.elastic.ffn.multiple);
      EXPECT_LE(all[i].capacity.channels - all[i - 1].capacity.channels, config.elastic.channels.multiple);
    }
    for (const auto& tier : tiers_of(config)) {
      const auto found = std::ranges::find(all, tier.name, &Tier::name);
      ASSERT_NE(found, all.end()) << tier.name;
      EXPECT_EQ(found->capacity, tier.capacity);
    }
  }
  EXPECT_EQ(planned_capacities(preset("transformer-1.5b")).size(), 1u);
}

TEST(Plan, ReadsTimes) {
  EXPECT_EQ(parse_milliseconds("20ms", "x"), 20);
  EXPECT_EQ(parse_milliseconds("0.5s", "x"), 500);
  EXPECT_EQ(parse_milliseconds("800us", "x"), 0.8);
  EXPECT_EQ(parse_milliseconds("3", "x"), 3);
  for (const auto* bad : {"", "ms", "-1ms", "0", "1h", "1e99s", "nan", "inf", "1 ms", "20msx"})
    EXPECT_THROW(parse_milliseconds(bad, "x"), Error) << bad;
}

}  // namespace
}  // namespace essh
