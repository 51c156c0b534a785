#include "essh/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace essh {

double learning_rate(const OptimizerRecipe& r, Index step, Index steps) {
  const auto total = static_cast<double>(steps), at = static_cast<double>(step);
  const double rise = std::max(1.0, std::ceil(r.warmup * total));
  if (at < rise && r.warmup > 0) return r.rate * (at + 1) / rise;
  if (r.schedule == "constant") return r.rate;
  if (r.schedule == "wsd") {
    const double fall = std::max(1.0, r.decay_share * total), left = total - at;
    return r.rate * (left >= fall ? 1 : r.floor + (1 - r.floor) * left / fall);
  }
  const double progress = std::clamp((at - rise) / std::max(1.0, total - rise), 0.0, 1.0);
  return r.rate * (r.floor + (1 - r.floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

}  // namespace essh
