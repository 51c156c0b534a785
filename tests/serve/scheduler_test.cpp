#include "essh/serve/scheduler.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/serve/live_server.h"

namespace essh::serve {
namespace {

// Keeps the tokens of a job; can leave after some of them.
class Recording : public Listener {
 public:
  explicit Recording(std::size_t leave_after = SIZE_MAX) : leave_after_(leave_after) {}
  bool gone() const override { return gone_; }
  void accepted() override {}
  void prompt_cached(std::size_t, std::size_t count) override { cached += count; }
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
  std::size_t cached = 0;
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

// A client that leaves gets no further token, and the other text is unchanged.
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

std::int64_t counted(const Metrics& metrics, const std::string& name) {
  const auto text = metrics.text({});
  const auto at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 2));
}

// A job with the given prompt. With may_stop its listener is called on the engine's thread, otherwise on the listener
// thread.
Job prompt_job(const Engine& engine, std::shared_ptr<Listener> listener, std::vector<TokenId> prompt, std::int64_t most,
               bool may_stop = false) {
  auto job = job_of(engine, std::move(listener), most);
  job.prompts = {std::move(prompt)};
  job.may_stop = may_stop;
  return job;
}

std::vector<TokenId> prompt_of(std::size_t length, std::uint64_t seed) {
  std::vector<TokenId> tokens;
  Rng rng(seed);
  for (std::size_t i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(rng.below(256)));
  return tokens;
}

struct Served {
  explicit Served(SchedulerOptions options) : scheduler(engine, std::move(options), metrics) {}

  std::shared_ptr<Recording> run(Job job) {
    const auto listener = std::make_shared<Recording>();
    job.listener = listener;
    scheduler.submit(std::move(job));
    listener->wait();
    return listener;
  }

  Stream stream = cpu_stream(1);
  Engine engine{served_family(), stream};
  Metrics metrics = {};
  Scheduler scheduler;
};

// The listener thread delivers the same tokens as the engine's thread.
TEST(Scheduler, BothWaysOfTellingGiveTheSameTokens) {
  Served served({});
  for (const auto logprobs : {-1, 2}) {
    auto at_once = prompt_job(served.engine, nullptr, {1, 2, 3}, 50, true);
    at_once.logprobs = logprobs;
    auto later = at_once;
    later.may_stop = false;
    const auto first = served.run(std::move(at_once)), second = served.run(std::move(later));
    EXPECT_EQ(first->tokens.size(), 50u);
    EXPECT_EQ(first->tokens, second->tokens);
  }
}

// 512 prompts of 128 tokens that arrive together take as few passes as pieces of 8,192 tokens allow.
TEST(Scheduler, PromptsThatArriveTogetherShareAPass) {
  std::promise<void> all;
  const auto together = all.get_future().share();
  Served served({.max_slots = 512, .prompt_piece = 8192, .before_step = [&] { together.wait(); }});
  std::vector<std::shared_ptr<Recording>> listeners;
  const auto submit = [&](std::size_t i) {
    listeners.push_back(std::make_shared<Recording>());
    served.scheduler.submit(prompt_job(served.engine, listeners.back(), prompt_of(128, i), 3));
  };
  for (std::size_t i = 0; i < 512; ++i) submit(i);
  all.set_value();
  for (auto& listener : listeners) listener->wait();
  served.scheduler.stop();
  // The first step takes the prompts that have arrived: at least one.
  const auto steps = counted(served.metrics, "essh_prompt_steps_total");
  EXPECT_GE(steps, 8);
  EXPECT_LE(steps, 9);
  EXPECT_EQ(counted(served.metrics, "essh_prompt_tokens_total{source=\"computed\"}"), 512 * 128);
  EXPECT_EQ(counted(served.metrics, "essh_generated_tokens_total"), 512 * 3);
  EXPECT_LE(counted(served.metrics, "essh_steps_total"), steps + 3);
}

// While texts draw tokens, short prompts wait for each other: until their steps of waiting add up to those that a pass
// costs the drawing texts, a quarter of `prompt_wait` each, or one of them has waited `prompt_wait` steps.
TEST(Scheduler, PromptsWaitForEachOther) {
  struct Case {
    std::size_t drawing;
    std::int64_t wait;
    std::size_t together;  // prompts of the fifth step; one more arrives three steps later
    std::int64_t passes;
  };
  for (const auto& [drawing, wait, together, passes] :
       {Case{1, 0, 1, 2}, {1, 2, 1, 2}, {1, 5, 1, 2}, {1, 16, 1, 1}, {1, 16, 4, 2}, {8, 2, 1, 2}, {8, 5, 1, 1}}) {
    std::vector<std::shared_ptr<Recording>> first, listeners;
    int step = 0;
    std::int64_t before = 0;
    Served* running = nullptr;
    std::promise<void> all_draw;
    const auto submit = [&](std::vector<std::shared_ptr<Recording>>& to, std::size_t count, std::int64_t most) {
      for (std::size_t i = 0; i < count; ++i) {
        to.push_back(std::make_shared<Recording>());
        running->scheduler.submit(prompt_job(running->engine, to.back(), prompt_of(9, 1), most));
      }
    };
    Served served({.prompt_wait = wait, .before_step = [&] {
                     // The others at once; from another thread some could come a step later, and wait.
                     if (++step == 1) {
                       submit(first, drawing - 1, 40);
                       all_draw.set_value();
                     }
                     if (step == 5) before = counted(running->metrics, "essh_prompt_steps_total");
                     if (step == 5 || step == 8) submit(listeners, step == 5 ? together : 1, 4);
                   }});
    running = &served;
    submit(first, 1, 40);
    all_draw.get_future().wait();
    for (const auto& listener : first) listener->wait();
    served.scheduler.stop();
    ASSERT_EQ(listeners.size(), together + 1);
    for (const auto& listener : listeners) {
      listener->wait();
      EXPECT_EQ(listener->tokens, listeners[0]->tokens);
      EXPECT_EQ(listener->status, 200);
    }
    for (const auto& listener : first) EXPECT_EQ(listener->tokens.size(), 40u);
    EXPECT_EQ(counted(served.metrics, "essh_prompt_steps_total") - before, passes)
        << drawing << " drawing, wait " << wait << ", " << together << " together";
  }
}

// No client sees a token that the metrics have not counted.
TEST(Scheduler, CountsTokensBeforeTheyAreSeen) {
  class Counting : public Recording {
   public:
    explicit Counting(const Metrics& metrics) : metrics_(metrics) {}
    bool token(std::size_t text, TokenId token, bool shown, const Scored* scored) override {
      const bool more = Recording::token(text, token, shown, scored);
      uncounted += counted(metrics_, "essh_generated_tokens_total") < std::ssize(tokens);
      return more;
    }
    int uncounted = 0;

   private:
    const Metrics& metrics_;
  };
  Served served({});
  for (const int logprobs : {-1, 0}) {
    const auto listener = std::make_shared<Counting>(served.metrics);
    auto job = prompt_job(served.engine, listener, {1, 2, 3}, 30);
    job.logprobs = logprobs;
    served.scheduler.submit(job);
    listener->wait();
    EXPECT_EQ(listener->tokens.size(), 30u);
    EXPECT_EQ(listener->uncounted, 0);
  }
}

// A text continued from a cached state has the same bits as one computed in the same pieces without a cache.
TEST(Scheduler, AKnownPromptGivesTheBitsOfAFreshOne) {
  for (const bool may_stop : {false, true}) {
    Served fresh({}), cached({.cache_bytes = 1 << 20});
    const auto job = [&](Served& served) {
      auto made = prompt_job(served.engine, nullptr, prompt_of(70, 4), 30, may_stop);
      made.sampling.temperature = 1;
      made.sampling.seed = 5;
      return made;
    };
    const auto expected = fresh.run(job(fresh))->tokens;
    for (int round = 0; round < 3; ++round) {
      const auto found = cached.run(job(cached));
      EXPECT_EQ(found->tokens, expected) << round;
      EXPECT_EQ(found->cached, round == 0 ? 0u : 69u);
    }
    // The next turn contains the whole text; its last token is not in the cached state.
    auto turn = prompt_of(70, 4);
    turn.insert(turn.end(), expected.begin(), expected.end());
    const auto next = cached.run(prompt_job(cached.engine, nullptr, turn, 5));
    EXPECT_EQ(next->cached, 70u + 29);
    EXPECT_GT(cached.scheduler.gauges().cache_bytes, 0);
    EXPECT_EQ(fresh.run(job(fresh))->cached, 0u);
    EXPECT_EQ(fresh.scheduler.gauges().cache_bytes, 0);
  }
}

// Several choices compute their prompt once.
TEST(Scheduler, ChoicesShareAPrompt) {
  for (const std::size_t cache : {0, 1 << 20}) {
    Served served({.max_slots = 3, .cache_bytes = cache});
    class Choices : public Recording {
     public:
      bool token(std::size_t text, TokenId token, bool shown, const Scored* scored) override {
        texts.resize(std::max(texts.size(), text + 1));
        texts[text].push_back(token);
        return Recording::token(text, token, shown, scored);
      }
      void ended(std::size_t text, Finish finish) override {
        if (++over == 7) Recording::ended(text, finish);
      }
      std::vector<std::vector<TokenId>> texts;
      int over = 0;
    };
    const auto listener = std::make_shared<Choices>();
    auto job = prompt_job(served.engine, listener, prompt_of(20, 2), 6);
    job.n = 7;
    job.sampling.temperature = 1;
    served.scheduler.submit(job);
    listener->wait();
    served.scheduler.stop();
    ASSERT_EQ(listener->texts.size(), 7u);
    EXPECT_EQ(counted(served.metrics, "essh_prompt_tokens_total{source=\"computed\"}"), 20);
    for (std::size_t c = 0; c < 7; ++c) {
      Served alone({});
      auto one = prompt_job(alone.engine, nullptr, prompt_of(20, 2), 6);
      one.sampling = job.sampling;
      one.sampling.seed += c;
      EXPECT_EQ(alone.run(std::move(one))->tokens, listener->texts[c]) << "choice " << c;
    }
  }
}

TEST(Scheduler, TheCacheIsApartByTierAndSalt) {
  Served served({.cache_bytes = 1 << 20});
  const auto job = [&](const char* tier, const std::string& salt) {
    auto made = prompt_job(served.engine, nullptr, prompt_of(30, 4), 2);
    made.tier = find_tier(served.engine.config(), tier);
    made.salt = salt;
    return made;
  };
  EXPECT_EQ(served.run(job("full", "a"))->cached, 0u);
  EXPECT_EQ(served.run(job("full", "b"))->cached, 0u);
  EXPECT_EQ(served.run(job("T1", "a"))->cached, 0u);
  EXPECT_EQ(served.run(job("full", "a"))->cached, 29u);
  EXPECT_EQ(served.run(job("T1", "a"))->cached, 29u);
  EXPECT_EQ(served.run(job("T1", "b"))->cached, 0u);
}

// With a cache too small for all texts, clients that leave and a failed allocation, every complete text equals that of
// a server without a cache.
TEST(Scheduler, AFullCacheChangesNoText) {
  Served fresh({});
  std::vector<std::vector<TokenId>> expected;
  const auto job = [&](Served& served, std::size_t i) {
    return prompt_job(served.engine, nullptr, prompt_of(10 + 7 * i, i), 12);
  };
  for (std::size_t i = 0; i < 8; ++i) expected.push_back(fresh.run(job(fresh, i))->tokens);
  Served small({.max_slots = 4, .cache_bytes = 40'000});
  std::size_t whole = 0;
  for (int round = 0; round < 12; ++round) {
    std::vector<std::shared_ptr<Recording>> listeners;
    for (std::size_t i = 0; i < 8; ++i) {
      auto made = job(small, (i + static_cast<std::size_t>(round)) % 8);
      listeners.push_back(std::make_shared<Recording>(i == 3 ? 5 : SIZE_MAX));
      made.listener = listeners.back();
      small.scheduler.submit(std::move(made));
    }
    for (std::size_t i = 0; i < 8; ++i) {
      listeners[i]->wait();
      const auto& full = expected[(i + static_cast<std::size_t>(round)) % 8];
      if (i == 3 && listeners[i]->status == 499) {
        EXPECT_EQ(listeners[i]->tokens, std::vector<TokenId>(full.begin(), full.begin() + 5));
      } else {
        EXPECT_EQ(listeners[i]->tokens, full);
        ++whole;
      }
    }
    EXPECT_LE(small.scheduler.gauges().cache_bytes, 40'000);
#ifndef __SANITIZE_ADDRESS__
    if (round == 5) {
      EXPECT_THROW(Buffer(Device::Cpu, std::size_t{1} << 62, "more than there is"), Error);
    }
#endif
  }
  EXPECT_GE(whole, 12u * 7);
}

}  // namespace
}  // namespace essh::serve
