#include "essh/serve/latency_control.h"

#include <fmt/format.h>

#include <algorithm>

namespace essh::serve {

void LatencyControl::observe(double now, double between, std::int64_t waiting) {
  const std::lock_guard lock(mutex_);
  grow(now);
  observed_ = now;
  average_ = average_ ? (1 - options_.smoothing) * *average_ + options_.smoothing * between : between;
  const bool slow = *average_ > options_.limit;
  if (slow || waiting > 0) {
    calm_since_.reset();
    if (level_ + 1 >= levels_ || (changed_ && now - *changed_ < options_.reduce_seconds)) return;
    ++level_;
    changed_ = now;
    reason_ = slow
                  ? fmt::format("{:.1f} ms between tokens, the limit is {:g} ms", 1e3 * *average_, 1e3 * options_.limit)
                  : fmt::format("{} texts wait", waiting);
  } else if (*average_ > options_.calm_share * options_.limit) {
    calm_since_.reset();
  } else if (!calm_since_) {
    calm_since_ = now;
  }
}

LatencyControl::Decision LatencyControl::decide(double now) {
  const std::lock_guard lock(mutex_);
  grow(now);
  return {level_, level_ > 0 ? reason_ : ""};
}

// Lowers the level by one for every calm period that has passed.
void LatencyControl::grow(double now) {
  if (level_ == 0) return;
  // Without steps, the time since the last one is calm and the average restarts.
  if (!calm_since_ && now - *observed_ >= options_.grow_seconds) {
    calm_since_ = observed_;
    average_.reset();
  }
  while (level_ > 0 && calm_since_ && now - std::max(*calm_since_, *changed_) >= options_.grow_seconds) {
    changed_ = std::max(*calm_since_, *changed_) + options_.grow_seconds;
    --level_;
  }
}

}  // namespace essh::serve
