#include "essh/base/memory_reader.h"

#include <algorithm>
#include <numeric>

#include "essh/base/clock.h"
#include "essh/base/error.h"
#include "essh/base/machine.h"

namespace essh {
namespace {

std::uint64_t bytes_to_read() {
  constexpr std::uint64_t kLeast = 256u << 20;
  constexpr std::uint64_t kMost = 1u << 30;
  const auto wanted = std::clamp(2 * last_level_cache(), kLeast, kMost);
  const auto bytes = std::min(wanted, this_memory().available / 4);
  return bytes < (16u << 20) ? 0 : bytes / sizeof(std::uint64_t) * sizeof(std::uint64_t);
}

// Four chains of additions, so that the loop is bound by memory.
std::uint64_t sum(const std::uint64_t* begin, const std::uint64_t* end) {
  std::uint64_t a = 0, b = 0, c = 0, d = 0;
  for (; end - begin >= 4; begin += 4) {
    a += begin[0];
    b += begin[1];
    c += begin[2];
    d += begin[3];
  }
  for (; begin != end; ++begin) a += *begin;
  return a + b + c + d;
}

}  // namespace

MemoryReader::MemoryReader(ThreadPool& pool)
    : pool_(pool),
      bytes_(bytes_to_read()),
      words_(std::make_unique_for_overwrite<std::uint64_t[]>(bytes_ / sizeof(std::uint64_t))),
      sums_(static_cast<std::size_t>(pool.threads())) {
  // First touch by the threads that read it, so that each share is in near memory.
  pool_.split(static_cast<std::int64_t>(bytes_ / sizeof(std::uint64_t)),
              [&](std::int64_t begin, std::int64_t end, int) { std::fill(&words_[begin], &words_[end], 1u); });
}

void MemoryReader::read() {
  const auto count = static_cast<std::int64_t>(bytes_ / sizeof(std::uint64_t));
  pool_.split(count, [&](std::int64_t begin, std::int64_t end, int thread) {
    sums_[static_cast<std::size_t>(thread)] = sum(&words_[begin], &words_[end]);
  });
  ESSH_ASSERT(std::accumulate(sums_.begin(), sums_.end(), std::uint64_t{0}) == static_cast<std::uint64_t>(count));
}

// The best of a few passes counts: other load can only slow a pass down.
ReadBandwidth measure_read_bandwidth(ThreadPool& pool) {
  constexpr int kPasses = 5;
  MemoryReader memory(pool);
  ReadBandwidth result{.bytes_per_second = 0, .bytes = memory.bytes()};
  if (result.bytes == 0) return result;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    memory.read();
    result.bytes_per_second =
        std::max(result.bytes_per_second, static_cast<double>(result.bytes) / seconds_since(start));
  }
  return result;
}

}  // namespace essh
