#include "essh/data/loader.h"

#include <utility>

#include "essh/base/error.h"

namespace essh {

Batch read_batch(const Sequences& sequences, std::int64_t first_sample, std::int64_t rows) {
  const auto length = static_cast<std::size_t>(sequences.length()), size = static_cast<std::size_t>(rows) * length;
  Batch batch{.first_sample = first_sample,
              .rows = rows,
              .length = sequences.length(),
              .inputs = std::vector<std::int32_t>(size),
              .targets = std::vector<std::int32_t>(size)};
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    sequences.read(first_sample + static_cast<std::int64_t>(row), std::span(batch.inputs).subspan(row * length, length),
                   std::span(batch.targets).subspan(row * length, length));
  }
  return batch;
}

Loader::Loader(const Sequences& sequences, LoaderOptions options, std::int64_t position)
    : sequences_(sequences), options_(options), position_(position) {
  ESSH_ASSERT(options.rows > 0 && options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks);
  ESSH_ASSERT(position >= 0);
  start();
}

Loader::~Loader() {
  stop();
}

void Loader::prefetch(std::int64_t position) {
  try {
    while (true) {
      auto batch = read_batch(sequences_, position + options_.rank * options_.rows, options_.rows);
      position += options_.rows * options_.ranks;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || ready_.size() < kAhead; });
      if (stopping_) return;
      ready_.push_back(std::move(batch));
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || error_; });
  if (ready_.empty()) std::rethrow_exception(error_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  position_ += options_.rows * options_.ranks;
  return batch;
}

void Loader::seek(std::int64_t position) {
  ESSH_ASSERT(position >= 0);
  stop();
  position_ = position;
  start();
}

void Loader::start() {
  thread_ = std::thread([this, position = position_] { prefetch(position); });
}

void Loader::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  stopping_ = false;
  ready_.clear();
  error_ = nullptr;
}

}  // namespace essh
