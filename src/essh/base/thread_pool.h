#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace essh {

// A fixed number of threads, including the caller. The partition of work depends only on that number.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end, thread) with one contiguous range of [0, count) per thread. Returns when all ranges are
  // done; rethrows the first exception of a body. Must not be called from inside a body.
  void split(std::int64_t count, const std::function<void(std::int64_t, std::int64_t, int)>& body);
  // Calls body(index, thread) for each index of [0, count). A thread takes the indices of its own contiguous range,
  // which is the same every time, and then those left of other ranges.
  void each(std::int64_t count, const std::function<void(std::int64_t, int)>& body);

 private:
  struct Team;
  std::unique_ptr<Team> team_;
};

// Cores this process may use.
int available_cores();

}  // namespace essh
