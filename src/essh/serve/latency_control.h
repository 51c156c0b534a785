#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace essh::serve {

struct LatencyOptions {
  double limit = 0;           // seconds between two tokens of a text
  double smoothing = 0.2;     // weight of a new measurement in the average
  double calm_share = 0.6;    // calm: latency below this share of the limit and an empty queue
  double reduce_seconds = 1;  // least time between two reductions
  double grow_seconds = 5;    // calm time before the level falls by one
};

// Chooses how far to reduce capacity so that the time between tokens stays below a limit. Level 0 is no reduction. The
// level rises by one while the average exceeds the limit or texts wait for a slot, and falls by one after a calm
// period. Time is an argument, in seconds. Callable from any thread.
class LatencyControl {
 public:
  LatencyControl(LatencyOptions options, std::size_t levels) : options_(options), levels_(levels) {}

  // Reports a step: the longest time between two tokens of a text, and the number of texts waiting for a slot.
  void observe(double now, double between, std::int64_t waiting);

  struct Decision {
    std::size_t level = 0;
    std::string reason = {};  // why the level last rose; empty at level 0
  };
  // Time without any step counts as calm.
  Decision decide(double now);

 private:
  void grow(double now);

  LatencyOptions options_;
  std::size_t levels_;
  std::mutex mutex_;
  std::size_t level_ = 0;
  std::string reason_;
  std::optional<double> average_, observed_, changed_, calm_since_;
};

}  // namespace essh::serve
