#include "essh/serve/metrics.h"

#include <gtest/gtest.h>

namespace essh::serve {
namespace {

TEST(Metrics, AHistogramCountsUpToEachBound) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 9.0}) histogram.observe(value);
  std::string text;
  histogram.print(text, "h");
  EXPECT_EQ(text, "h_bucket{le=\"1\"} 2\nh_bucket{le=\"2\"} 3\nh_bucket{le=\"+Inf\"} 4\nh_sum 12\nh_count 4\n");
}

TEST(Metrics, TextHasEveryFamilyOnce) {
  Metrics metrics;
  metrics.answered("/v1/completions", 200, "T4");
  metrics.answered("/v1/completions", 200, "T4");
  metrics.answered("/x\"\n", 404, "");
  metrics.cached_tokens(2);
  metrics.stepped({.steps = 1, .prompt_steps = 1, .drawn = 3, .read = 5});
  metrics.cancelled("disconnected");
  metrics.observe(Metrics::FirstToken, 0.01);
  const auto text = metrics.text({.running = 1, .queued = 2, .connections = 3, .state_bytes = 4});
  for (const char* line : {"essh_requests_total{endpoint=\"/v1/completions\",code=\"200\",tier=\"T4\"} 2\n",
                           "essh_requests_total{endpoint=\"/x\\\" \",code=\"404\",tier=\"\"} 1\n",
                           "essh_prompt_tokens_total{source=\"cached\"} 2\n", "essh_generated_tokens_total 3\n",
                           "essh_cancelled_total{reason=\"disconnected\"} 1\n", "essh_running 1\n", "essh_queued 2\n",
                           "essh_time_to_first_token_seconds_count 1\n"}) {
    const auto found = text.find(line);
    ASSERT_NE(found, std::string::npos) << line << text;
    EXPECT_EQ(text.find(line, found + 1), std::string::npos);
  }
}

}  // namespace
}  // namespace essh::serve
