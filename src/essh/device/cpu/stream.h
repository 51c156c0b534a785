#pragma once
#include <memory>
#include <vector>

#include "essh/base/thread_pool.h"
#include "essh/device/memory.h"

namespace essh::cpu {

// Kernels run immediately, in order, on a thread pool; each thread has its own scratch.
class Stream {
 public:
  explicit Stream(int threads = available_cores());

  ThreadPool& pool() { return pool_; }
  Arena& scratch(int thread) { return *scratch_[static_cast<std::size_t>(thread)]; }

 private:
  ThreadPool pool_;
  std::vector<std::unique_ptr<Arena>> scratch_;
};

// Scratch that is released at the end of the scope.
class Scratch {
 public:
  Scratch(Stream& stream, int thread) : arena_(stream.scratch(thread)), mark_(arena_.mark()) {}
  ~Scratch() { arena_.release(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* take(Index count) {
    return arena_.vector<T>(count).data;
  }

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace essh::cpu
