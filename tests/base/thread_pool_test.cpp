#include "essh/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace essh {
namespace {

TEST(ThreadPool, CoversEachIndexOnce) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (int count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
      pool.split(count, [&](auto begin, auto end, int) {
        for (auto i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
      });
      pool.each(count, [&](auto i, int) { ++hits[static_cast<std::size_t>(i)]; });
      for (auto& hit : hits) EXPECT_EQ(hit.load(), 2);
    }
  }
}

// More threads than cores: the caller runs tasks that were not begun, under their thread index, and each task runs
// once.
TEST(ThreadPool, TheCallerTakesPartsThatNobodyHasBegun) {
  // The system decides whether a worker comes first: repeats until the caller has been first once.
  constexpr int kThreads = 64, kRounds = 200, kMostRounds = 50'000;
  ThreadPool pool(kThreads);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> by_caller{0};
  for (int round = 0; round < kRounds || (by_caller == 0 && round < kMostRounds); ++round) {
    std::vector<std::atomic<int>> parts(kThreads);
    pool.split(kThreads, [&](auto begin, auto end, int thread) {
      EXPECT_EQ(begin, thread);
      EXPECT_EQ(end, thread + 1);
      ++parts[static_cast<std::size_t>(thread)];
      if (thread > 0 && std::this_thread::get_id() == caller) ++by_caller;
    });
    for (auto& part : parts) EXPECT_EQ(part.load(), 1);
  }
  EXPECT_GT(by_caller.load(), 0);
}

TEST(ThreadPool, HandsExceptionsBackAndGoesOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.split(3,
                            [](auto, auto, int thread) {
                              if (thread == 2) throw std::runtime_error("x");
                            }),
                 std::runtime_error);
    std::atomic<int> sum{0};
    pool.each(10, [&](auto i, int) { sum += static_cast<int>(i); });
    EXPECT_EQ(sum.load(), 45);
  }
}

}  // namespace
}  // namespace essh
