#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "essh/config/field.h"

namespace essh {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

// One training step of metrics.jsonl. Absent and null values are NaN.
struct StepMetrics {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = kNotMeasured;
  double full_loss = kNotMeasured;
  double reduced_loss = kNotMeasured;
  double distillation = kNotMeasured;
  double lr = kNotMeasured;
  double grad_norm = kNotMeasured;
  double tokens_per_second = kNotMeasured;
  double mfu = kNotMeasured;
  double seconds = kNotMeasured;
  std::map<double, std::int64_t> shares = {};  // micro-batches at each budget xi
};

template <class Visitor>
void fields(Visitor& visit, StepMetrics& m) {
  visit("step", m.step, Field{.help = "from 1", .min = 0, .required = true});
  visit("tokens", m.tokens, Field{.help = "since the start", .min = 0, .required = true});
  visit("loss", m.loss, Field{.help = "what was minimised"});
  visit("full_loss", m.full_loss, Field{.help = "cross-entropy at full capacity"});
  visit("reduced_loss", m.reduced_loss, Field{.help = "cross-entropy at the sampled capacities"});
  visit("distillation", m.distillation, Field{.help = "divergence from the full capacity"});
  visit("lr", m.lr, Field{.help = "learning rate"});
  visit("grad_norm", m.grad_norm, Field{.help = "before clipping"});
  visit("tokens_per_second", m.tokens_per_second, Field{.help = "of the step"});
  visit("mfu", m.mfu, Field{.help = "share of the machine's peak"});
  visit("seconds", m.seconds, Field{.help = "since this session of the run began"});
}

struct ValidationMetrics {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::vector<std::pair<std::string, double>> tiers;  // name and mean loss, in the file's order
};

struct RunMetrics {
  std::vector<StepMetrics> steps;              // rising
  std::vector<ValidationMetrics> validations;  // rising
  bool torn = false;                           // the last line was incomplete and is ignored
};

// Reads the lines of "kind" step and validation of metrics.jsonl; other kinds are ignored. If a resumed run repeated
// steps, the later lines count. An incomplete last line is ignored; any other bad line is an error that names the line.
RunMetrics read_metrics(const std::filesystem::path& path);

}  // namespace essh
