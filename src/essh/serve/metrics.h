#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace essh::serve {

// A histogram of Prometheus.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  // Appends the lines NAME_bucket, NAME_sum and NAME_count.
  void print(std::string& text, const std::string& name) const;

 private:
  std::vector<double> bounds_;  // ascending
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

// Current values.
struct Gauges {
  std::int64_t running = 0, queued = 0, connections = 0, state_bytes = 0, cache_bytes = 0;
};

// The contents of /metrics. Callable from any thread.
class Metrics {
 public:
  enum Duration { FirstToken, BetweenTokens, Request, Queue, Prompt, kDurations };

  Metrics();
  void answered(const std::string& endpoint, int status, const std::string& tier);
  void cached_tokens(std::int64_t count);
  // Totals of engine steps: tokens drawn, prompt tokens computed, and for each token after the first of its text the
  // seconds since the previous one.
  struct Step {
    std::int64_t steps = 0, prompt_steps = 0, drawn = 0, read = 0;
    std::vector<double> gaps = {};
  };
  void stepped(const Step& step);
  void cancelled(const std::string& reason);
  void observe(Duration duration, double seconds);
  // Prometheus text format 0.0.4.
  std::string text(const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, int, std::string>, std::uint64_t> requests_;
  std::map<std::string, std::uint64_t> cancelled_;
  std::uint64_t computed_ = 0, cached_ = 0, generated_ = 0, steps_ = 0, prompt_steps_ = 0;
  std::vector<Histogram> durations_;
};

}  // namespace essh::serve
