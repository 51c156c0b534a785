#include "essh/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace essh {

double Schedule::rate(Index step) const {
  const auto total = static_cast<double>(steps), at = static_cast<double>(step);
  const double rise = std::max(1.0, std::ceil(warmup * total));
  if (at < rise && warmup > 0) return peak * (at + 1) / rise;
  if (shape == "constant") return peak;
  if (shape == "wsd") {
    const double fall = std::max(1.0, decay_share * total), left = total - at;
    return peak * (left >= fall ? 1 : floor + (1 - floor) * left / fall);
  }
  const double progress = std::clamp((at - rise) / std::max(1.0, total - rise), 0.0, 1.0);
  return peak * (floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
}

}  // namespace essh
