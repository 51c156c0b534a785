#pragma once
#include <cstdint>
#include <functional>
#include <memory>

namespace essh {

// A fixed team of threads that includes the caller. How work is partitioned depends on the team size only.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(begin, end, thread) so that the ranges cover [0, count) once, one contiguous range per thread. Returns
  // when all are done; the first exception of a body is thrown here. Not for use from inside a body.
  void split(std::int64_t count, const std::function<void(std::int64_t, std::int64_t, int)>& body);
  // Calls body(index, thread) for each index of [0, count), indices taken from a shared counter.
  void each(std::int64_t count, const std::function<void(std::int64_t, int)>& body);

 private:
  struct Team;
  std::unique_ptr<Team> team_;
};

// Cores this process may use.
int available_cores();

}  // namespace essh
