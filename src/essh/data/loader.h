#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "essh/data/sequences.h"

namespace essh {

// Consecutive sequences, row after row.
struct Batch {
  std::int64_t first_sample = 0;  // index of the first row in the global stream; the others follow
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::vector<std::int32_t> inputs;   // rows x length
  std::vector<std::int32_t> targets;  // rows x length
};
Batch read_batch(const Sequences& sequences, std::int64_t first_sample, std::int64_t rows);

struct LoaderOptions {
  std::int64_t rows = 1;  // of a micro-batch
  int rank = 0;
  int ranks = 1;
};

// The training stream of one rank. All ranks together see one global stream of samples: micro-batch k of rank r,
// counted from position p, holds the samples p + (k ranks + r) rows and following. A step therefore sees the same
// samples for any number of ranks and rows.
class Loader {
 public:
  // Keeps a reference to `sequences`. Prefetches on its own thread.
  Loader(const Sequences& sequences, LoaderOptions options, std::int64_t position = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch of this rank; a damaged shard is an error here.
  Batch next();
  // Samples consumed by all ranks, if each has taken the same number of micro-batches; the only state of a checkpoint.
  std::int64_t position() const { return position_; }
  void seek(std::int64_t position);

 private:
  static constexpr std::size_t kAhead = 4;  // batches

  void start();
  void stop();
  void prefetch(std::int64_t position);

  const Sequences& sequences_;
  LoaderOptions options_;
  std::int64_t position_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace essh
