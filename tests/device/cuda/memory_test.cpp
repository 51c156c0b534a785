#include "essh/device/memory.h"

#include <gtest/gtest.h>

#include <numeric>

#include "essh/base/error.h"
#include "essh/device/cuda/stream.h"

namespace essh {
namespace {

// One contiguous address range: data survives growth, and there is no gap between matrices of any size.
TEST(ArenaCuda, GrowsWithoutMovingWhatItHolds) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  cuda::Stream stream;
  Arena arena(Device::Cuda);
  constexpr Index kCount = 1000;
  std::vector<float> written(kCount), read(kCount);
  std::iota(written.begin(), written.end(), 1.0f);
  const auto first = arena.vector<float>(kCount);
  stream.copy(first.data, written.data(), sizeof(float) * kCount);
  const float* end = first.data;
  std::size_t asked = 4096;
  for (const Index megabytes : {1, 3, 70, 190, 2, 300}) {
    const auto more = arena.vector<float>(megabytes << 18);
    EXPECT_GT(more.data, end);
    end = more.data;
    asked += static_cast<std::size_t>(megabytes) << 20;
    // The last element is mapped too.
    stream.copy(more.data + more.size - 1, written.data(), sizeof(float));
  }
  stream.copy(read.data(), first.data, sizeof(float) * kCount);
  EXPECT_EQ(read, written);
  EXPECT_EQ(arena.touched(), asked);
  EXPECT_LE(arena.capacity(), asked + (std::size_t{64} << 20));
  const auto held = arena.capacity();
  arena.release();
  EXPECT_EQ(arena.vector<float>(1).data, first.data);
  EXPECT_EQ(arena.capacity(), held);
}

TEST(ArenaCuda, SmallOnesAreSmallAndAllIsGivenBack) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  cuda::Stream stream;
  const auto before = cuda::device_memory().free;
  {
    std::vector<std::unique_ptr<Arena>> arenas;
    for (int i = 0; i < 16; ++i) {
      arenas.push_back(std::make_unique<Arena>(Device::Cuda));
      arenas.back()->vector<float>(10);
      EXPECT_LE(arenas.back()->capacity(), std::size_t{4} << 20);
    }
    arenas[3]->vector<float>(Index{1} << 28);
    EXPECT_LE(cuda::device_memory().free + (std::size_t{1} << 30), before);
  }
  EXPECT_GE(cuda::device_memory().free + (std::size_t{64} << 20), before);
}

TEST(ArenaCuda, SaysWhatDoesNotFit) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  cuda::Stream stream;
  Arena arena(Device::Cuda, "a test");
  const auto first = arena.vector<float>(1000);
  for (const Index elements : {Index{1} << 40, static_cast<Index>(cuda::device_memory().free / sizeof(float))}) {
    try {
      arena.vector<float>(elements);
      FAIL() << "more than the GPU has was given";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
      EXPECT_NE(std::string(error.what()).find("for a test does not fit"), std::string::npos) << error.what();
    }
  }
  // Memory mapped before the failure is still usable.
  const std::vector<float> zeros(1000);
  stream.copy(first.data, zeros.data(), sizeof(float) * zeros.size());
  stream.wait();
}

}  // namespace
}  // namespace essh
