#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "essh/data/dataset.h"
#include "essh/data/sample_order.h"

namespace essh {

// Sequences of context + 1 tokens, row after row: inputs are the first `context` of a row, targets the last.
struct Batch {
  std::int64_t first_sample = 0;  // place of the first row in the global stream; the others follow it
  std::int64_t rows = 0;
  std::int64_t context = 0;
  std::vector<std::int32_t> tokens;

  std::span<const std::int32_t> row(std::int64_t index) const {
    const auto length = static_cast<std::size_t>(context + 1);
    return std::span(tokens).subspan(static_cast<std::size_t>(index) * length, length);
  }
};

struct LoaderOptions {
  std::int64_t context = 0;
  std::int64_t rows = 1;  // of a micro-batch
  std::uint64_t seed = 0;
  int rank = 0;
  int ranks = 1;
};

// The training stream of one rank. All ranks together see one global stream of samples, whose order depends on the seed
// alone: micro-batch k of rank r, counted from position p, holds the samples p + (k ranks + r) rows and following. So a
// step that starts at p and takes a given number of samples sees the same ones whatever the ranks and rows are.
class Loader {
 public:
  // Keeps a reference to `stream`. Prefetches on a thread of its own.
  Loader(const TokenStream& stream, LoaderOptions options, std::int64_t position = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch of this rank; a damaged shard is an error here.
  Batch next();
  // Samples that all ranks have taken, given that each has taken as many micro-batches: all a checkpoint needs.
  std::int64_t position() const { return position_; }
  void seek(std::int64_t position);
  // Samples of an epoch.
  std::int64_t samples() const { return order_.samples(); }

 private:
  static constexpr std::size_t kAhead = 4;  // batches

  Batch read(std::int64_t position) const;
  void start();
  void stop();
  void prefetch(std::int64_t position);

  const TokenStream& stream_;
  LoaderOptions options_;
  SampleOrder order_;
  std::int64_t position_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace essh
