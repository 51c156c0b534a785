#pragma once
#include <string>
#include <vector>

#include "essh/config/field.h"
#include "essh/tensor/matrix.h"

namespace essh {

struct ModelConfig;

// The capacity axes, by their names in config.json: "channels" of every spectral mixer, units of every feed-forward
// ("ffn").
enum class Axis { None, Channels, Ffn };

// The number of channels and units that run, always the first ones. 0 if the model has no such axis.
struct Capacity {
  Index channels = 0;
  Index ffn = 0;

  Index operator[](Axis axis) const { return axis == Axis::Channels ? channels : ffn; }
  bool operator==(const Capacity&) const = default;
};

// How one axis follows the budget xi: full * xi^exponent, rounded to a multiple, at least one multiple, at most full.
struct ElasticAxis {
  Index full = 0;  // 0: the model has no such axis
  double exponent = 1;
  Index multiple = 1;
  std::string rounding = "nearest";  // or "down"

  bool operator==(const ElasticAxis&) const = default;
};

// The capacities of a family: its axes, and the budgets of the named tiers T1, T2, ...
struct ElasticConfig {
  ElasticAxis channels = {};
  ElasticAxis ffn = {};
  std::vector<double> tiers = {};
  // Every tensor has a companion NAME.slope of its shape; a capacity uses tensor + slope_share * slope.
  bool slopes = false;

  bool is_family() const { return channels.full > 0 || ffn.full > 0; }
};

template <class Visitor>
void fields(Visitor& visit, ElasticAxis& a) {
  visit("full", a.full, Field{.help = "count at full capacity; 0: not elastic", .min = 0, .max = 1 << 24});
  visit("exponent", a.exponent, Field{.help = "of the budget", .min = 0, .max = 8});
  visit("multiple", a.multiple, Field{.help = "counts are multiples of this", .min = 1, .max = 1 << 24});
  visit("rounding", a.rounding, Field{.help = "nearest or down"});
}

template <class Visitor>
void fields(Visitor& visit, ElasticConfig& c) {
  visit("channels", c.channels, Field{.help = "spectral channels"});
  visit("ffn", c.ffn, Field{.help = "feed-forward units"});
  visit("tiers", c.tiers, Field{.help = "budgets of the named tiers, rising", .min = 0, .max = 1});
  visit("slopes", c.slopes, Field{.help = "tensors change with the capacity, along NAME.slope"});
}

// The paper's two-rate map: K = max(1, round(K_full xi^a)), n = 64 max(1, floor(n_full xi^b / 64)).
ElasticConfig two_rate(Index channels, Index ffn, std::vector<double> tiers, double channel_exponent = 0.5,
                       double ffn_exponent = 0.8);

// A capacity with the name it was requested by: "T4", "full", "xi=0.3" or "18x1792".
struct Tier {
  std::string name;
  double budget = 0;  // xi; 0 if the capacity was given by its sizes
  Capacity capacity;
};

// xi of T1..T10 and of the capacities sampled in pretraining.
std::vector<double> deployment_budgets();
std::vector<double> training_budgets();

Capacity capacity_at(const ModelConfig& config, double budget);
Capacity full_capacity(const ModelConfig& config);
// How far a capacity goes along the slopes: the squared share of the units that it lacks (of the channels, in a model
// whose feed-forwards are not elastic). 0 at full capacity.
double slope_share(const ModelConfig& config, Capacity capacity);
// "18x1792": the counts of the axes that this model has.
std::string sizes_of(const ModelConfig& config, Capacity capacity);

// The named tiers of a family; one tier "full" for a model of fixed capacity.
std::vector<Tier> tiers_of(const ModelConfig& config);
// "T4", "full", "xi=0.3" or sizes. Errors list the valid names.
Tier find_tier(const ModelConfig& config, const std::string& name);
// Given sizes, checked against the full ones.
Tier custom_tier(const ModelConfig& config, Capacity capacity);

}  // namespace essh
