#include "essh/comm/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "essh/base/error.h"
#include "tests/comm/sums_in_order.h"
#include "tests/comm/thread_ranks.h"

namespace essh::comm {
namespace {

using testing::contribution;
using testing::Mailboxes;
using testing::on_ranks;
using testing::sum_in_order;
using testing::ThreadTransport;

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

TEST(Collectives, AllReduceAddsInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::size_t count : {0u, 1u, 4u, 1000u, 1'200'001u}) {
      const std::vector<float> expected = sum_in_order<float>(count, ranks, count);
      const std::vector<double> expected_double = sum_in_order<double>(count, ranks, count);
      on_ranks(ranks, [&](Collectives& group, int rank, ThreadTransport&) {
        std::vector<float> data = contribution(count, rank, count);
        std::vector<double> doubles(data.begin(), data.end());
        group.all_reduce_sum(std::span(data));
        group.all_reduce_sum(std::span(doubles));
        EXPECT_TRUE(same_bits<float>(data, expected)) << ranks << " ranks, " << count;
        EXPECT_TRUE(same_bits<double>(doubles, expected_double)) << ranks << " ranks, " << count;
      });
    }
  }
}

TEST(Collectives, TheOrderMattersForTheseNumbers) {
  const std::vector<float> forward = sum_in_order<float>(1000, 3, 1);
  std::vector<float> backward = contribution(1000, 2, 1);
  for (const int rank : {1, 0}) {
    const std::vector<float> values = contribution(1000, rank, 1);
    for (std::size_t i = 0; i < values.size(); ++i) backward[i] += values[i];
  }
  EXPECT_FALSE(same_bits<float>(forward, backward));
}

TEST(Collectives, ReduceScatterAndAllGatherOfUnequalParts) {
  // Longer than one piece, shorter, and empty.
  const std::vector<std::size_t> bounds{0, 700'000, 700'000, 700'123, 1'000'000};
  const std::vector<float> expected = sum_in_order<float>(1'000'000, 4, 9);
  on_ranks(4, [&](Collectives& group, int rank, ThreadTransport&) {
    const std::vector<float> own = contribution(1'000'000, rank, 9);
    std::vector<float> data = own;
    group.reduce_scatter_sum(std::span(data), bounds);
    for (std::size_t i = 0; i < data.size(); ++i) {
      const bool mine = i >= bounds[rank] && i < bounds[rank + 1];
      ASSERT_EQ(data[i], mine ? expected[i] : own[i]) << i;
    }
    group.all_gather(std::span(data), bounds);
    EXPECT_TRUE(same_bits<float>(data, expected));
  });
}

TEST(Collectives, AllReduceSendsNoMoreThanARing) {
  on_ranks(4, [&](Collectives& group, int, ThreadTransport& transport) {
    std::vector<float> data(4'000'000);
    group.all_reduce_sum(std::span(data));
    EXPECT_EQ(transport.sent, 2 * 3 * data.size() / 4 * sizeof(float));
  });
}

TEST(Collectives, BroadcastFromEveryRoot) {
  for (const int root : {0, 2}) {
    for (const std::size_t count : {0u, 2u, 5'000'003u}) {
      on_ranks(3, [&](Collectives& group, int rank, ThreadTransport&) {
        std::vector<std::byte> data(count);
        for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::byte>(rank == root ? i * 37 : 0);
        group.broadcast(data, root);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<std::byte>(i * 37));
      });
    }
  }
}

TEST(Collectives, Values) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 61;
  on_ranks(3, [&](Collectives& group, int rank, ThreadTransport&) {
    EXPECT_EQ(group.all_reduce_sum(kLarge + rank), 3 * kLarge + 3);
    EXPECT_THROW(group.all_reduce_sum(2 * kLarge), Error);
    EXPECT_EQ(group.all_reduce_max(-1.0 - rank), -1.0);
    EXPECT_EQ(group.all_reduce_max(rank == 1 ? std::numeric_limits<double>::infinity() : 0.0),
              std::numeric_limits<double>::infinity());
    for (int bad = 0; bad < 3; ++bad) EXPECT_TRUE(std::isnan(group.all_reduce_max(rank == bad ? std::nan("") : 1.0)));
    group.barrier();
  });
}

TEST(Collectives, RefusesPartsThatDoNotFit) {
  Mailboxes mail;
  ThreadTransport transport(mail, 0, 2);
  Collectives group(transport);
  std::vector<float> data(4);
  EXPECT_THROW(group.reduce_scatter_sum(std::span(data), std::vector<std::size_t>{0, 4}), Error);
  EXPECT_THROW(group.reduce_scatter_sum(std::span(data), std::vector<std::size_t>{0, 2, 3}), Error);
  EXPECT_THROW(group.all_gather(std::span(data), std::vector<std::size_t>{0, 5, 4}), Error);
  EXPECT_THROW(group.broadcast(std::as_writable_bytes(std::span(data)), 2), Error);
}

}  // namespace
}  // namespace essh::comm
