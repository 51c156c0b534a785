#include "essh/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace essh::serve {
namespace {

struct DurationName {
  const char* name;
  const char* help;
};
constexpr std::array<DurationName, Metrics::kDurations> kNames = {{
    {"essh_time_to_first_token_seconds", "From the arrival of a request to its first token."},
    {"essh_time_between_tokens_seconds", "From one token of a text to the next."},
    {"essh_request_seconds", "From the arrival of a request to its end."},
    {"essh_queue_seconds", "From the arrival of a text to its place among the running ones."},
    {"essh_prompt_seconds", "From the place among the running ones to the end of the prompt."},
}};
const std::vector<double> kBounds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100};

void head(std::string& text, const char* name, const char* type, const char* help) {
  text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

void Histogram::observe(double value) {
  const auto place = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<std::size_t>(place)];
  sum_ += value;
}

void Histogram::print(std::string& text, const std::string& name) const {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    total += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], total);
  }
  total += counts_.back();
  text += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, total, sum_);
}

Metrics::Metrics() : durations_(kDurations, Histogram(kBounds)) {}

void Metrics::answered(const std::string& endpoint, int status, const std::string& tier) {
  const std::lock_guard lock(mutex_);
  ++requests_[{endpoint, status, tier}];
}

void Metrics::cached_tokens(std::int64_t count) {
  const std::lock_guard lock(mutex_);
  cached_ += static_cast<std::uint64_t>(count);
}

void Metrics::stepped(const Step& step) {
  const std::lock_guard lock(mutex_);
  steps_ += static_cast<std::uint64_t>(step.steps);
  prompt_steps_ += static_cast<std::uint64_t>(step.prompt_steps);
  generated_ += static_cast<std::uint64_t>(step.drawn);
  computed_ += static_cast<std::uint64_t>(step.read);
  for (const double gap : step.gaps) durations_[BetweenTokens].observe(gap);
}

void Metrics::cancelled(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ++cancelled_[reason];
}

void Metrics::observe(Duration duration, double seconds) {
  const std::lock_guard lock(mutex_);
  durations_[duration].observe(seconds);
}

std::string Metrics::text(const Gauges& gauges) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  head(text, "essh_requests_total", "counter", "Answered requests.");
  for (const auto& [key, count] : requests_) {
    const auto& [endpoint, status, tier] = key;
    text += fmt::format("essh_requests_total{{endpoint=\"{}\",code=\"{}\",tier=\"{}\"}} {}\n", escaped(endpoint),
                        status, escaped(tier), count);
  }
  head(text, "essh_prompt_tokens_total", "counter", "Tokens of prompts, by where their state came from.");
  text += fmt::format("essh_prompt_tokens_total{{source=\"computed\"}} {}\n", computed_);
  text += fmt::format("essh_prompt_tokens_total{{source=\"cached\"}} {}\n", cached_);
  head(text, "essh_generated_tokens_total", "counter", "Tokens drawn.");
  text += fmt::format("essh_generated_tokens_total {}\n", generated_);
  head(text, "essh_steps_total", "counter", "Steps of the engine; each advances every text that draws.");
  text += fmt::format("essh_steps_total {}\n", steps_);
  head(text, "essh_prompt_steps_total", "counter", "Steps that computed prompt tokens.");
  text += fmt::format("essh_prompt_steps_total {}\n", prompt_steps_);
  head(text, "essh_cancelled_total", "counter", "Texts that ended before their time.");
  for (const auto& [reason, count] : cancelled_)
    text += fmt::format("essh_cancelled_total{{reason=\"{}\"}} {}\n", escaped(reason), count);
  const auto gauge = [&](const char* name, const char* help, std::int64_t value) {
    head(text, name, "gauge", help);
    text += fmt::format("{} {}\n", name, value);
  };
  gauge("essh_running", "Texts that hold a slot.", gauges.running);
  gauge("essh_queued", "Texts that wait for a slot.", gauges.queued);
  gauge("essh_connections", "Open connections.", gauges.connections);
  gauge("essh_state_bytes", "States of the texts that hold a slot.", gauges.state_bytes);
  gauge("essh_cache_bytes", "States in the prefix cache.", gauges.cache_bytes);
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    head(text, kNames[i].name, "histogram", kNames[i].help);
    durations_[i].print(text, kNames[i].name);
  }
  return text;
}

}  // namespace essh::serve
