#include "essh/serve/listener_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace essh::serve {
namespace {

class Recorded : public Listener {
 public:
  bool gone() const override { return left; }
  void accepted() override {}
  void prompt_cached(std::size_t, std::size_t) override {}
  void prompt_progress(std::size_t, std::size_t) override {}
  void prompt_scored(std::size_t, std::span<const Scored>) override {}
  bool token(std::size_t, TokenId token, bool, const Scored*) override {
    if (token == throws_at) throw HttpError(418, "no more");
    tokens.push_back(token);
    if (token == leaves_at) left = true;
    return token != 7;
  }
  void kept(SavedState) override {}
  void ended(std::size_t, Finish) override { ++ends; }
  void failed(const HttpError& error) override { status = error.status(); }

  std::vector<TokenId> tokens;
  TokenId throws_at = -1, leaves_at = -1;
  std::atomic<bool> left{false};
  int ends = 0, status = 0;
};

std::shared_ptr<Recipient> recipient(std::shared_ptr<Listener> listener) {
  auto made = std::make_shared<Recipient>();
  made->listener = std::move(listener);
  return made;
}

Notice end_of(const std::shared_ptr<Recipient>& to) {
  return {.to = to, .call = [](Listener& listener) { listener.ended(0, Finish::Stop); }, .texts = 1, .tokens = 3};
}

TEST(ListenerThread, CallsInOrderAndSettles) {
  std::int64_t texts = 0, tokens = 0;
  const auto one = std::make_shared<Recorded>(), two = std::make_shared<Recorded>();
  const auto first = recipient(one), second = recipient(two);
  std::vector<TokenId> expected;
  {
    ListenerThread thread([&](std::int64_t a, std::int64_t b) { texts += a, tokens += b; });
    for (TokenId step = 0; step < 1000; ++step) {
      expected.push_back(step);
      thread.add({.to = first, .token = step});
      thread.add({.to = second, .token = step});
      thread.hand_over();
    }
    thread.add(end_of(first));
    thread.add(end_of(second));
    thread.finish();
    EXPECT_EQ(texts, 2);
    EXPECT_EQ(tokens, 6);
  }
  for (const auto& listener : {one, two}) {
    EXPECT_EQ(listener->tokens, expected);
    EXPECT_EQ(listener->ends, 1);
    EXPECT_EQ(listener->status, 0);
  }
}

// A listener that throws gets no further call; its texts are still counted as ended.
TEST(ListenerThread, AFailedCallEndsItsListenerAlone) {
  std::int64_t texts = 0;
  const auto bad = std::make_shared<Recorded>(), good = std::make_shared<Recorded>();
  bad->throws_at = 2;
  const auto first = recipient(bad), second = recipient(good);
  ListenerThread thread([&](std::int64_t count, std::int64_t) { texts += count; });
  for (TokenId step = 0; step < 5; ++step) {
    thread.add({.to = first, .token = step});
    thread.add({.to = second, .token = step});
  }
  thread.add(end_of(first));
  thread.add(end_of(second));
  thread.finish();
  EXPECT_EQ(bad->tokens.size(), 2u);
  EXPECT_EQ(bad->status, 418);
  EXPECT_EQ(bad->ends, 0);
  EXPECT_TRUE(first->deaf);
  EXPECT_EQ(good->tokens.size(), 5u);
  EXPECT_EQ(good->ends, 1);
  EXPECT_EQ(texts, 2);
}

TEST(ListenerThread, AClientThatLeavesGetsNoTokenMore) {
  const auto leaving = std::make_shared<Recorded>();
  leaving->leaves_at = 3;
  const auto to = recipient(leaving);
  ListenerThread thread([](std::int64_t, std::int64_t) {});
  for (TokenId step = 0; step < 10; ++step) thread.add({.to = to, .token = step});
  thread.finish();
  EXPECT_EQ(leaving->tokens.size(), 4u);
}

TEST(ListenerThread, TellsAtOnceWhatATokenAnswers) {
  const auto to = recipient(std::make_shared<Recorded>());
  ListenerThread thread([](std::int64_t, std::int64_t) {});
  EXPECT_TRUE(thread.tell({.to = to, .token = 6}));
  EXPECT_FALSE(thread.tell({.to = to, .token = 7}));
}

}  // namespace
}  // namespace essh::serve
