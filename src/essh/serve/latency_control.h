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
  double calm_share = 0.6;    // of the limit: below it, and with nobody waiting, capacity may grow again
  double reduce_seconds = 1;  // least time from one reduction to the next
  double grow_seconds = 5;    // calm time before capacity grows by one step
};

// How far capacity is reduced so that the time between tokens stays below a limit. Level 0 is no reduction. Capacity
// shrinks by one level while the average is over the limit or texts wait for a slot, and grows by one after a calm
// time. A function of what it is told: time comes from the caller, in seconds. May be used from any thread.
class LatencyControl {
 public:
  LatencyControl(LatencyOptions options, std::size_t levels) : options_(options), levels_(levels) {}

  // After a step: the longest time between two tokens of a text, and how many texts wait for a slot.
  void observe(double now, double between, std::int64_t waiting);

  struct Decision {
    std::size_t level = 0;
    std::string reason = {};  // of the last reduction; empty at level 0
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
