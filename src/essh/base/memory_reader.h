#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "essh/base/thread_pool.h"

namespace essh {

// A buffer that all threads of a pool read: twice the last-level cache, 256 MB to 1 GB, less if memory is scarce.
class MemoryReader {
 public:
  explicit MemoryReader(ThreadPool& pool);

  std::uint64_t bytes() const { return bytes_; }  // 0 if too little memory is available
  void read();

 private:
  ThreadPool& pool_;
  std::uint64_t bytes_;
  std::unique_ptr<std::uint64_t[]> words_;
  std::vector<std::uint64_t> sums_;
};

// The rate at which this machine reads memory with these threads.
struct ReadBandwidth {
  double bytes_per_second = 0;  // 0 if too little memory is available
  std::uint64_t bytes = 0;
};
ReadBandwidth measure_read_bandwidth(ThreadPool& pool);

}  // namespace essh
