#include "essh/comm/group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "essh/base/build_info.h"
#include "essh/base/error.h"

namespace essh::comm {
namespace {

using Parts = std::vector<std::size_t>;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class EnvironmentGuard {
 public:
  explicit EnvironmentGuard(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) old_ = {true, value};
    unsetenv(name);
  }
  ~EnvironmentGuard() {
    if (old_.first) {
      setenv(name_, old_.second.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::pair<bool, std::string> old_;
};

class LauncherTest : public ::testing::Test {
 private:
  EnvironmentGuard open_mpi_{"OMPI_COMM_WORLD_SIZE"};
  EnvironmentGuard pmi_{"PMI_SIZE"};
  EnvironmentGuard pmix_{"PMIX_RANK"};
};

TEST(SingleGroup, IsRankZeroOfOneAndKeepsTheData) {
  const auto group = make_single_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  std::vector<float> floats{1.5f, -2.0f, std::numeric_limits<float>::infinity()};
  const std::vector<float> before = floats;
  Request request = group->start_all_reduce_sum(floats);
  EXPECT_TRUE(request.done());
  request.wait();
  request.wait();
  const Parts bounds{0, 3};
  group->reduce_scatter_sum(floats, bounds);
  group->all_gather(floats, bounds);
  group->all_gather(std::as_writable_bytes(std::span(floats)), even_bounds(12, 1));
  group->broadcast(std::as_writable_bytes(std::span(floats)), 0);
  group->barrier();
  EXPECT_EQ(floats, before);
  std::vector<double> doubles{0.1, 0.2};
  group->all_reduce_sum(doubles);
  EXPECT_EQ(doubles, (std::vector<double>{0.1, 0.2}));
  EXPECT_EQ(group->all_reduce_sum(std::int64_t{-7}), -7);
  EXPECT_EQ(group->all_reduce_max(-3.5), -3.5);
  EXPECT_TRUE(std::isnan(group->all_reduce_max(std::nan(""))));
  group->close();
}

TEST(SingleGroup, RefusesPartsThatDoNotCoverTheData) {
  const auto group = make_single_group();
  std::vector<float> data(3);
  EXPECT_THROW(group->reduce_scatter_sum(data, Parts{0, 2}), Error);
  EXPECT_THROW(group->all_gather(data, Parts{0, 1, 3}), Error);
  EXPECT_THROW(group->broadcast(std::as_writable_bytes(std::span(data)), 1), Error);
}

TEST(SingleGroupDeathTest, AbortAllEndsTheProcessWithTheCode) {
  EXPECT_EXIT(make_single_group()->abort_all("the disk is on fire", 6), ::testing::ExitedWithCode(6),
              "disk is on fire");
}

TEST(Bounds, EvenPartsDifferByAtMostOne) {
  EXPECT_EQ(even_bounds(10, 3), (Parts{0, 4, 7, 10}));
  EXPECT_EQ(even_bounds(2, 4), (Parts{0, 1, 2, 2, 2}));
  EXPECT_EQ(even_bounds(0, 2), (Parts{0, 0, 0}));
  EXPECT_EQ(even_bounds(std::size_t{6'000'000'001}, 2), (Parts{0, 3'000'000'001, 6'000'000'001}));
}

TEST(Bounds, SlicesKeepTheOwners) {
  const Parts bounds{0, 4, 4, 10};
  EXPECT_EQ(slice_bounds(bounds, 0, 10), (Parts{0, 4, 4, 10}));
  EXPECT_EQ(slice_bounds(bounds, 2, 6), (Parts{0, 2, 2, 4}));
  EXPECT_EQ(slice_bounds(bounds, 5, 8), (Parts{0, 0, 0, 3}));
  EXPECT_EQ(slice_bounds(bounds, 1, 3), (Parts{0, 2, 2, 2}));
  EXPECT_THROW(slice_bounds(bounds, 3, 11), Error);
}

class CountedWork final : public Request::Work {
 public:
  CountedWork(int& waits, int& abandons) : waits_(waits), abandons_(abandons) {}
  void wait() override {
    ++waits_;
    throw Error(ErrorKind::Device, "lost");
  }
  bool done() const override { return false; }
  void abandon() noexcept override { ++abandons_; }

 private:
  int& waits_;
  int& abandons_;
};

TEST(Request, WaitsWhenForgottenAndAbandonsWhileAnExceptionPasses) {
  int waits = 0;
  int abandons = 0;
  const auto start = [&] { return Request(std::make_unique<CountedWork>(waits, abandons)); };
  {
    Request forgotten = start();
    EXPECT_FALSE(forgotten.done());
  }
  EXPECT_EQ(std::pair(waits, abandons), std::pair(1, 0));
  {
    Request waited = start();
    EXPECT_THROW(waited.wait(), Error);
    EXPECT_TRUE(waited.done());
  }
  EXPECT_EQ(std::pair(waits, abandons), std::pair(2, 0));
  {
    Request replaced = start();
    replaced = Request();
    EXPECT_EQ(waits, 3);
  }
  try {
    Request passed = start();
    throw std::runtime_error("something else");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(std::pair(waits, abandons), std::pair(3, 1));
}

TEST_F(LauncherTest, WithoutALauncherOrWithOneRankTheGroupIsThisProcess) {
  EXPECT_EQ(make_group()->size(), 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  setenv("PMIX_RANK", "0", 1);
  EXPECT_EQ(make_group()->size(), 1);
}

TEST_F(LauncherTest, RefusesANumberOfRanksThatIsNone) {
  for (const char* bad : {"", "two", "0", "-2", "2x", "99999999999"}) {
    setenv("PMI_SIZE", bad, 1);
    try {
      make_group();
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Usage);
      EXPECT_TRUE(contains(error.what(), "PMI_SIZE=")) << error.what();
    }
  }
}

TEST_F(LauncherTest, SaysWhenThisBuildHasNoMpi) {
  if (build::kMpi.found) GTEST_SKIP() << "this build has MPI";
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  try {
    make_group();
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
    EXPECT_TRUE(contains(error.what(), "libopenmpi-dev")) << error.what();
  }
}

TEST(RankGuard, WithoutOtherRanksReturnsTheCode) {
  RankGuard ranks;
  EXPECT_EQ(ranks.leave(0), 0);
  EXPECT_EQ(ranks.leave(75), 75);
}

}  // namespace
}  // namespace essh::comm
