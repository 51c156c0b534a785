#include "essh/device/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>

namespace essh {
namespace {

std::size_t held(const std::string& purpose) {
  for (const auto& use : held_memory(Device::Cpu)) {
    if (use.purpose == purpose) return use.bytes;
  }
  return 0;
}

bool aligned(const void* place) {
  return reinterpret_cast<std::uintptr_t>(place) % 256 == 0;
}

TEST(Buffer, IsFilledIfAsked) {
  if (!std::getenv("ESSH_FILL_MEMORY")) GTEST_SKIP() << "CTest sets ESSH_FILL_MEMORY";
  const Buffer buffer(Device::Cpu, 1000, "a test of filled memory");
  EXPECT_TRUE(std::all_of(buffer.as<std::byte>(), buffer.as<std::byte>() + 1000,
                          [](std::byte x) { return x == std::byte{0xff}; }));
}

TEST(Arena, PiecesAreAlignedAndApart) {
  Arena arena(Device::Cpu, "a test of pieces");
  EXPECT_EQ(arena.capacity(), 0u);
  std::vector<Vector<float>> pieces;
  for (const Index size : {1, 63, 64, 65, 0, 1000}) {
    pieces.push_back(arena.vector<float>(size));
    EXPECT_TRUE(aligned(pieces.back().data)) << size;
    std::iota(pieces.back().data, pieces.back().data + size, static_cast<float>(1000 * size));
  }
  for (const auto& piece : pieces) {
    for (Index i = 0; i < piece.size; ++i) ASSERT_EQ(piece.data[i], static_cast<float>(1000 * piece.size + i));
  }
  // 256 bytes each, except the last two: 512 and 4096.
  EXPECT_EQ(arena.touched(), 256u + 256 + 256 + 512 + 256 + 4096);
  EXPECT_EQ(held("a test of pieces"), arena.capacity());
}

TEST(Arena, WhatIsReleasedIsHandedOutAgain) {
  Arena arena(Device::Cpu);
  const auto kept = arena.matrix<double>(3, 5);
  kept(2, 4) = 7;
  const auto mark = arena.mark();
  const auto* first = arena.vector<float>(100).data;
  const auto* second = arena.vector<float>(100).data;
  const auto capacity = arena.capacity(), touched = arena.touched();
  for (int round = 0; round < 3; ++round) {
    arena.release(mark);
    EXPECT_EQ(arena.vector<float>(100).data, first);
    EXPECT_EQ(arena.vector<float>(100).data, second);
  }
  EXPECT_EQ(kept(2, 4), 7);
  EXPECT_EQ(arena.capacity(), capacity);
  EXPECT_EQ(arena.touched(), touched);
  arena.release();
  EXPECT_EQ(static_cast<void*>(arena.matrix<double>(3, 5).data), static_cast<void*>(kept.data));
}

// Memory held by a pass never moves; the next pass reuses all of it without asking the system.
TEST(Arena, GrowsByBlocksThatStayWhereTheyAre) {
  constexpr Index kMegabyte = Index{1} << 18;  // floats
  Arena arena(Device::Cpu, "a test of growth");
  std::vector<Vector<float>> first, again;
  for (const Index megabytes : {20, 20, 50, 1}) {
    first.push_back(arena.vector<float>(megabytes * kMegabyte));
    first.back().data[first.back().size - 1] = static_cast<float>(megabytes);
  }
  EXPECT_EQ(first[0].data[20 * kMegabyte - 1], 20);
  const auto capacity = arena.capacity();
  // 32 MB, 32 MB, 50 MB for a request larger than a block, and the last in a block of its own.
  EXPECT_EQ(capacity, std::size_t{32 + 32 + 50 + 32} << 20);
  EXPECT_EQ(held("a test of growth"), capacity);
  arena.release();
  for (const Index megabytes : {20, 20, 50, 1}) again.push_back(arena.vector<float>(megabytes * kMegabyte));
  EXPECT_EQ(arena.capacity(), capacity);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(again[i].data, first[i].data);
}

TEST(Arena, GivesEverythingBack) {
  {
    Arena arena(Device::Cpu, "a test of an end");
    arena.vector<float>(10);
    EXPECT_GT(held("a test of an end"), 0u);
    EXPECT_GE(peak_bytes(Device::Cpu), arena.capacity());
  }
  EXPECT_EQ(held("a test of an end"), 0u);
}

TEST(Buffer, SaysWhatDoesNotFit) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the program instead";
#endif
  try {
    const Buffer buffer(Device::Cpu, std::size_t{1} << 60, "an impossible test");
    FAIL() << "more than any machine has was given";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
    EXPECT_NE(std::string(error.what()).find("for an impossible test"), std::string::npos) << error.what();
  }
  EXPECT_EQ(held("an impossible test"), 0u);
}

// More than any address space: no allocator has it.
constexpr std::size_t kTooMuch = std::size_t{1} << 62;

TEST(Reclaimer, IsAskedUntilItHasNothingLeft) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the program instead";
#endif
  int left = 3, asked = 0;
  {
    const Reclaimer other(Device::Cuda, [] {
      ADD_FAILURE() << "of another device";
      return true;
    });
    const Reclaimer reclaimer(Device::Cpu, [&] {
      ++asked;
      return left-- > 0;
    });
    Buffer small(Device::Cpu, 100, "a test of reclaimers");
    EXPECT_EQ(asked, 0);
    try {
      Buffer large(Device::Cpu, kTooMuch, "a test of reclaimers");
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::OutOfMemory);
    }
    EXPECT_EQ(asked, 4);
  }
  EXPECT_THROW(Buffer(Device::Cpu, kTooMuch, "a test of reclaimers"), Error);
  EXPECT_EQ(asked, 4) << "it lives no more";
}

}  // namespace
}  // namespace essh
