#include "essh/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
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
