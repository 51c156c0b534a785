// Started by mpirun. Without an argument, checks the collectives between the ranks; with one, fails in that way.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "essh/base/error.h"
#include "essh/comm/group.h"
#include "tests/comm/sums_in_order.h"

namespace essh::comm {
namespace {

using testing::contribution;
using testing::sum_in_order;

Group* group = nullptr;

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

TEST(Ranks, SumsAreThoseOfTheRanksInOrderEveryTime) {
  for (const std::size_t count : {0u, 1u, 7u, 100'000u, 3'000'001u}) {
    const std::vector<float> expected = sum_in_order<float>(count, group->size(), count);
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<float> data = contribution(count, group->rank(), count);
      // The ranks arrive in a different order each time.
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * ((group->rank() + repeat) % group->size())));
      group->all_reduce_sum(data);
      EXPECT_TRUE(same_bits<float>(data, expected)) << count;
    }
    const std::vector<float> own = contribution(count, group->rank(), count);
    std::vector<double> doubles(own.begin(), own.end());
    group->all_reduce_sum(doubles);
    EXPECT_TRUE(same_bits<double>(doubles, sum_in_order<double>(count, group->size(), count))) << count;
  }
}

TEST(Ranks, Values) {
  const int size = group->size();
  EXPECT_EQ(group->all_reduce_sum(std::int64_t{1} << (40 + group->rank())), ((std::int64_t{1} << size) - 1) << 40);
  EXPECT_EQ(group->all_reduce_max(-2.0 - group->rank()), -2.0);
  EXPECT_EQ(group->all_reduce_max(group->rank()), size - 1);
  EXPECT_TRUE(std::isnan(group->all_reduce_max(group->rank() == size - 1 ? std::nan("") : 1.0)));
}

TEST(Ranks, BarrierHoldsUntilTheLastComes) {
  // All processes of a machine share the monotonic clock.
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (int last = 0; last < group->size(); ++last) {
    if (group->rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const double came = now();
    group->barrier();
    const double went = now();
    EXPECT_GE(went, group->all_reduce_max(came));
  }
}

TEST(Ranks, BroadcastFromEveryRoot) {
  for (int root = 0; root < group->size(); ++root) {
    std::vector<float> data(1'500'000 + static_cast<std::size_t>(root));
    if (group->rank() == root) data = contribution(data.size(), root, 3);
    group->broadcast(std::as_writable_bytes(std::span(data)), root);
    EXPECT_TRUE(same_bits<float>(data, contribution(data.size(), root, 3)));
  }
}

// Each rank owns a shard of the flat array of parameters; the last rank owns most of it and rank 1 nothing.
std::vector<std::size_t> unequal_bounds(std::size_t count) {
  std::vector<std::size_t> bounds(static_cast<std::size_t>(group->size()) + 1, 1000);
  bounds.front() = 0;
  bounds.back() = count;
  return bounds;
}

TEST(Ranks, ShardedStep) {
  constexpr std::size_t kCount = 2'500'000;
  const std::vector<std::size_t> bounds = unequal_bounds(kCount);
  const std::vector<float> sum = sum_in_order<float>(kCount, group->size(), 5);
  std::vector<float> data = contribution(kCount, group->rank(), 5);
  group->reduce_scatter_sum(data, bounds);
  const std::size_t begin = bounds[group->rank()];
  const std::size_t end = bounds[group->rank() + 1];
  EXPECT_TRUE(
      same_bits<float>(std::span(data).subspan(begin, end - begin), std::span(sum).subspan(begin, end - begin)));
  for (std::size_t i = 0; i < kCount; ++i) data[i] = i >= begin && i < end ? 2.0f * data[i] : -1.0f;
  group->all_gather(data, bounds);
  std::vector<float> expected = sum;
  for (float& value : expected) value *= 2.0f;
  EXPECT_TRUE(same_bits<float>(data, expected));

  std::vector<std::byte> bytes(kCount, static_cast<std::byte>(group->rank() + 1));
  group->all_gather(bytes, bounds);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto owner = std::upper_bound(bounds.begin(), bounds.end(), i) - bounds.begin() - 1;
    ASSERT_EQ(bytes[i], static_cast<std::byte>(owner + 1)) << i;
  }
}

TEST(Ranks, BucketsAreReducedBesideOtherWork) {
  constexpr std::size_t kCount = 3'000'000;
  constexpr std::size_t kBucket = 700'000;
  const std::vector<float> expected = sum_in_order<float>(kCount, group->size(), 6);
  const std::vector<std::size_t> bounds = unequal_bounds(kCount);
  std::vector<float> whole(kCount);
  std::vector<float> sharded(kCount);
  const std::vector<float> own = contribution(kCount, group->rank(), 6);
  std::vector<Request> requests;
  // From the end, in the order of backward.
  for (std::size_t end = kCount; end > 0;) {
    const std::size_t begin = end - std::min(end, kBucket);
    std::copy(own.begin() + begin, own.begin() + end, whole.begin() + begin);
    std::copy(own.begin() + begin, own.begin() + end, sharded.begin() + begin);
    requests.push_back(group->start_all_reduce_sum(std::span(whole).subspan(begin, end - begin)));
    requests.push_back(group->start_reduce_scatter_sum(std::span(sharded).subspan(begin, end - begin),
                                                       slice_bounds(bounds, begin, end)));
    end = begin;
  }
  // A single value is queued behind the buckets.
  EXPECT_EQ(group->all_reduce_sum(std::int64_t{1}), group->size());
  for (Request& request : requests) {
    EXPECT_TRUE(request.done());
    request.wait();
  }
  EXPECT_TRUE(same_bits<float>(whole, expected));
  group->start_all_gather(sharded, bounds).wait();
  EXPECT_TRUE(same_bits<float>(sharded, expected));
}

TEST(Ranks, MoveWithoutTheCaller) {
  std::vector<float> data = contribution(1'000'000, group->rank(), 7);
  Request request = group->start_all_reduce_sum(data);
  for (int i = 0; i < 100000 && !request.done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(request.done());
  request.wait();
}

TEST(Ranks, JoinOneGroupPerProcess) {
  try {
    make_group();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Internal);
  }
}

int check_collectives() {
  const auto joined = make_group({.timeout = std::chrono::seconds(60)});
  group = joined.get();
  int failed = RUN_ALL_TESTS();
  failed = group->all_reduce_max(failed) != 0.0 ? 1 : 0;
  joined->close();
  try {
    joined->barrier();
    return 1;
  } catch (const Error&) {
    return failed;
  }
}

// Every rank but 0 fails while rank 0 waits for it.
int fail_by(std::string_view way) {
  const bool impatient = way == "timeout" || way == "mixed_up" || way == "sizes" || way == "parts";
  const auto joined = make_group({.timeout = impatient ? std::chrono::seconds(10) : std::chrono::minutes(10)});
  std::vector<float> data(1'000'000);
  joined->all_reduce_sum(data);
  const bool first = joined->rank() == 0;
  if (way == "sizes") {
    // Far longer than the other rank's array.
    std::vector<float> longer(8'000'000);
    joined->all_reduce_sum(first ? std::span(data) : std::span(longer));
  } else if (way == "parts") {
    std::vector<std::size_t> bounds = even_bounds(data.size(), joined->size());
    if (!first) bounds[1] += 1;
    joined->reduce_scatter_sum(data, bounds);
  } else if (way == "error_in_flight") {
    // Rank 0 takes part only in the first collective.
    std::vector<float> doomed(8'000'000);
    std::vector<Request> requests;
    for (int i = 0; i < (first ? 1 : 3); ++i) requests.push_back(joined->start_all_reduce_sum(doomed));
    if (!first) fail(ErrorKind::BadFile, "shard-00003.bin: bad checksum");
    requests.front().wait();
  } else if (!first) {
    if (way == "error") fail(ErrorKind::BadFile, "shard-00003.bin: bad checksum");
    if (way == "abort") joined->abort_all("no space left on device", 5);
    if (way == "killed") std::raise(SIGKILL);
    if (way == "timeout") std::this_thread::sleep_for(std::chrono::seconds(60));
    if (way == "mixed_up") joined->all_reduce_max(1.0);
  }
  joined->barrier();
  return 0;
}

}  // namespace
}  // namespace essh::comm

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  essh::comm::RankGuard ranks;
  try {
    return ranks.leave(argc > 1 ? essh::comm::fail_by(argv[1]) : essh::comm::check_collectives());
  } catch (const essh::Error& error) {
    fmt::print(stderr, "essh: {}\n", error.what());
    return ranks.leave(essh::exit_code(error.kind()));
  }
}
