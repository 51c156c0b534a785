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
  std::int64_t first_sample = 0;  // place of the first row in the global stream; the others follow it
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
// counted from position p, holds the samples p + (k ranks + r) rows and following. So a step that starts at p and takes
// a given number of samples sees the same ones whatever the ranks and rows are.
class Loader {
 public:
  // Keeps a reference to `sequences`. Prefetches on a thread of its own.
  Loader(const Sequences& sequences, LoaderOptions options, std::int64_t position = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch of this rank; a damaged shard is an error here.
  Batch next();
  // Samples that all ranks have taken, given that each has taken as many micro-batches: all a checkpoint needs.
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
