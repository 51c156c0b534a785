#include "essh/serve/listener_thread.h"

#include "essh/base/log.h"
#include "essh/base/thread_name.h"

namespace essh::serve {
namespace {

constexpr std::size_t kMostSteps = 2;

}  // namespace

ListenerThread::ListenerThread(std::function<void(std::int64_t, std::int64_t)> settled)
    : settled_(std::move(settled)), thread_([this] { work(); }) {}

ListenerThread::~ListenerThread() {
  finish();
}

void ListenerThread::finish() {
  hand_over();
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ListenerThread::hand_over() {
  if (collected_.empty()) return;
  {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [&] { return steps_.size() < kMostSteps; });
    steps_.push_back(std::exchange(collected_, std::exchange(spare_, {})));
  }
  wake_.notify_one();
}

void ListenerThread::work() {
  name_thread("essh-listener");
  std::vector<Notice> step;
  for (;;) {
    step.clear();
    {
      std::unique_lock lock(mutex_);
      if (step.capacity() > spare_.capacity()) std::swap(step, spare_);
      wake_.wait(lock, [&] { return finishing_ || !steps_.empty(); });
      if (steps_.empty()) return;
      step = std::move(steps_.front());
      steps_.erase(steps_.begin());
    }
    taken_.notify_one();
    for (const auto& notice : step) tell(notice);
  }
}

bool ListenerThread::tell(const Notice& notice) {
  bool more = true;
  auto& to = *notice.to;
  auto& listener = *to.listener;
  try {
    if (to.deaf) {
    } else if (notice.call) {
      notice.call(listener);
    } else if (!listener.gone()) {
      more = listener.token(notice.text, notice.token, notice.shown, nullptr);
    }
  } catch (const std::exception& error) {
    to.deaf = true;
    try {
      listener.failed(as_http_error(error));
    } catch (const std::exception& again) {
      log::warn("serve: an error could not be reported: {}", again.what());
    }
  }
  if (notice.texts > 0 || notice.tokens > 0) settled_(notice.texts, notice.tokens);
  return more;
}

}  // namespace essh::serve
