#include "essh/data/loader.h"

#include <utility>

#include "essh/base/error.h"

namespace essh {
namespace {

std::int64_t checked_windows(const TokenStream& stream, const LoaderOptions& options) {
  ESSH_ASSERT(options.rows > 0 && options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks);
  const auto windows = stream.windows(options.context);
  if (windows == 0) {
    fail(ErrorKind::Usage, "the training split has {} tokens, too few for one sequence of {} + 1; prepare more text",
         stream.tokens(), options.context);
  }
  return windows;
}

}  // namespace

Loader::Loader(const TokenStream& stream, LoaderOptions options, std::int64_t position)
    : stream_(stream), options_(options), order_(options.seed, checked_windows(stream, options)), position_(position) {
  ESSH_ASSERT(position >= 0);
  start();
}

Loader::~Loader() {
  stop();
}

Batch Loader::read(std::int64_t position) const {
  Batch batch{.first_sample = position + options_.rank * options_.rows,
              .rows = options_.rows,
              .context = options_.context,
              .tokens = {}};
  const auto length = static_cast<std::size_t>(options_.context + 1);
  batch.tokens.resize(static_cast<std::size_t>(options_.rows) * length);
  for (std::int64_t row = 0; row < options_.rows; ++row) {
    stream_.read_window(order_(batch.first_sample + row),
                        std::span(batch.tokens).subspan(static_cast<std::size_t>(row) * length, length));
  }
  return batch;
}

void Loader::prefetch(std::int64_t position) {
  try {
    while (true) {
      auto batch = read(position);
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
