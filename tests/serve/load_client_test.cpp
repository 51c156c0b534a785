#include "essh/serve/load_client.h"

#include <gtest/gtest.h>

#include "essh/base/error.h"
#include "tests/serve/live_server.h"

namespace essh::serve {
namespace {

TEST(LoadClient, Addresses) {
  const auto plain = parse_address("http://localhost:8080");
  EXPECT_EQ(fmt::format("{}|{}|{}", plain.host, plain.port, plain.prefix), "localhost|8080|");
  const auto longer = parse_address("http://[::1]/essh/v1/");
  EXPECT_EQ(fmt::format("{}|{}|{}", longer.host, longer.port, longer.prefix), "::1|80|/essh");
  for (const char* bad :
       {"localhost", "https://x", "http://", "http://:1", "http://x:0", "http://x:1x", "http://x:65536", "http://[::1"})
    EXPECT_THROW(parse_address(bad), Error) << bad;
}

TEST(LoadClient, Quantiles) {
  std::vector<float> samples;
  EXPECT_EQ(quantile(samples, 0.5), 0);
  for (int i = 100; i >= 0; --i) samples.push_back(static_cast<float>(i));
  EXPECT_EQ(quantile(samples, 0.5), 50);
  EXPECT_EQ(quantile(samples, 0.99), 99);
  EXPECT_EQ(quantile(samples, 1), 100);
}

class Loaded : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(StreamOrWhole, Loaded, ::testing::Bool());

TEST_P(Loaded, EveryRequestIsAnsweredAndCounted) {
  if (!can_serve()) GTEST_SKIP() << "built without Boost";
  LiveServer server;
  LoadOptions options{.address = {.host = "127.0.0.1", .port = server.port},
                      .model = "m@T1",
                      .concurrency = 40,
                      .requests = 200,
                      .prompt_tokens = 5,
                      .output_tokens = 7,
                      .stream = GetParam()};
  std::int64_t last = 0;
  const auto result = run_load(options, [&](std::int64_t done) { EXPECT_EQ(done, ++last); });
  EXPECT_EQ(last, 200);
  EXPECT_EQ(result.completed, 200) << (result.failures.empty() ? "" : result.failures.begin()->first);
  EXPECT_EQ(result.failed + result.cancelled, 0);
  EXPECT_EQ(result.prompt_tokens, 200 * 5);
  EXPECT_EQ(result.output_tokens, 200 * 7);
  EXPECT_EQ(result.first.size(), 200u);
  EXPECT_EQ(result.whole.size(), 200u);
  EXPECT_LE(result.between.size(), 200u * 6);
  EXPECT_EQ(result.between.empty(), !GetParam());
  EXPECT_FALSE(result.health.empty());
  // Cancelled requests are not failures, and the server becomes idle.
  options.cancel = 0.5;
  const auto restless = run_load(options);
  EXPECT_EQ(restless.failed, 0);
  EXPECT_GT(restless.cancelled, 0);
  EXPECT_GT(restless.completed, 0);
  EXPECT_EQ(restless.cancelled + restless.completed, 200);
  while (!server.model.scheduler.idle()) std::this_thread::yield();
  // A refused request is a failure, counted by its status.
  options.model = "other";
  const auto refused = run_load(options);
  EXPECT_EQ(refused.failures.at("HTTP 404") + refused.cancelled, 200);
}

TEST(LoadClient, ReadsWhatAServerSays) {
  if (!can_serve()) GTEST_SKIP() << "built without Boost";
  LiveServer server;
  const ServerAddress address{.host = "127.0.0.1", .port = server.port};
  EXPECT_EQ(http_get(address, "/health"), R"({"status":"ok"})");
  EXPECT_THROW(http_get(address, "/nothing"), Error);
  server.stop();
  EXPECT_THROW(http_get(address, "/health"), Error);
  const auto nobody = run_load({.address = address, .requests = 3});
  EXPECT_EQ(nobody.failed, 3);
}

}  // namespace
}  // namespace essh::serve
