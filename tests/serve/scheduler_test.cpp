#include "essh/serve/scheduler.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/serve/live_server.h"

namespace essh::serve {
namespace {

// Keeps the tokens of a job and can leave after some of them.
class Recording : public Listener {
 public:
  explicit Recording(std::size_t leave_after = SIZE_MAX) : leave_after_(leave_after) {}
  bool gone() const override { return gone_; }
  void accepted() override {}
  void prompt_cached(std::size_t, std::size_t) override {}
  void prompt_progress(std::size_t, std::size_t) override {}
  void prompt_scored(std::size_t, std::span<const Scored>) override {}
  bool token(std::size_t, TokenId token, bool, const Scored*) override {
    tokens.push_back(token);
    if (tokens.size() == leave_after_) gone_ = true;
    return true;
  }
  void kept(SavedState) override {}
  void ended(std::size_t, Finish) override { done_.set_value(); }
  void failed(const HttpError& error) override {
    status = error.status();
    done_.set_value();
  }
  void wait() { done_.get_future().wait(); }

  std::vector<TokenId> tokens;
  int status = 200;

 private:
  std::size_t leave_after_;
  std::atomic<bool> gone_{false};
  std::promise<void> done_;
};

Job job_of(const Engine& engine, std::shared_ptr<Listener> listener, std::int64_t most) {
  return {.tier = find_tier(engine.config(), "full"),
          .prompts = {{1, 2, 3}},
          .max_tokens = most,
          .ignore_eos = true,
          .listener = std::move(listener)};
}

// A client that leaves gets no token more, its slot is free before the next step, and its neighbour's bits stay.
TEST(Scheduler, CancelsWithinAStep) {
  Stream stream = cpu_stream(1);
  Engine engine(served_family(), stream);
  Metrics metrics;
  std::promise<void> both;
  const auto together = both.get_future().share();
  Scheduler scheduler(engine, {.before_step = [&] { together.wait(); }}, metrics);
  const auto alone = std::make_shared<Recording>(), leaving = std::make_shared<Recording>(5),
             other = std::make_shared<Recording>();
  scheduler.submit(job_of(engine, leaving, std::int64_t{1} << 40));
  scheduler.submit(job_of(engine, other, 40));
  both.set_value();
  leaving->wait();
  other->wait();
  EXPECT_EQ(leaving->tokens.size(), 5u);
  EXPECT_EQ(leaving->status, 499);
  EXPECT_EQ(other->tokens.size(), 40u);
  scheduler.submit(job_of(engine, alone, 40));
  alone->wait();
  EXPECT_EQ(alone->tokens, other->tokens);
}

TEST(Scheduler, ForgetsJobsWithoutATrace) {
  Stream stream = cpu_stream(1);
  Engine engine(served_family(), stream);
  Metrics metrics;
  Scheduler scheduler(engine, {.max_slots = 3}, metrics);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::shared_ptr<Recording>> listeners;
    for (std::size_t i = 0; i < 10; ++i) {
      listeners.push_back(std::make_shared<Recording>(i % 3 == 0 ? 1 + i : SIZE_MAX));
      scheduler.submit(job_of(engine, listeners.back(), 12));
    }
    for (auto& listener : listeners) listener->wait();
  }
  scheduler.stop();
  const auto gauges = scheduler.gauges();
  EXPECT_EQ(gauges.running + gauges.queued + gauges.state_bytes, 0);
  EXPECT_TRUE(scheduler.idle());
  const auto late = std::make_shared<Recording>();
  try {
    scheduler.submit(job_of(engine, late, 1));
    FAIL();
  } catch (const HttpError& error) {
    EXPECT_EQ(error.status(), 503);
  }
}

}  // namespace
}  // namespace essh::serve
