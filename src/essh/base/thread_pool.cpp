#include "essh/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace essh {
namespace {
// Kernels follow each other within microseconds: a worker spins this long before it sleeps.
constexpr int kSpins = 4000;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
}  // namespace

struct ThreadPool::Team {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<std::uint64_t> round{0};
  std::atomic<int> running{0};
  std::atomic<bool> stop{false};
  const std::function<void(int)>* task = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  void perform(int thread) {
    try {
      (*task)(thread);
    } catch (...) {
      std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int thread) {
    std::uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && round.load(std::memory_order_acquire) == seen; ++spin) pause_core();
      if (round.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return round.load() != seen; });
      }
      seen = round.load(std::memory_order_acquire);
      if (stop.load()) return;
      perform(thread);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
    }
  }

  void run(const std::function<void(int)>& body) {
    task = &body;
    error = nullptr;
    running.store(static_cast<int>(workers.size()), std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex);
      round.fetch_add(1, std::memory_order_release);
    }
    wake.notify_all();
    perform(0);
    for (int spin = 0; spin < kSpins && running.load(std::memory_order_acquire) != 0; ++spin) pause_core();
    // On a machine with other work a worker may be without a core: to wait for it must not take another.
    for (int left; (left = running.load(std::memory_order_acquire)) != 0;)
      running.wait(left, std::memory_order_acquire);
    if (error) std::rethrow_exception(error);
  }
};

ThreadPool::ThreadPool(int threads) : team_(std::make_unique<Team>()) {
  for (int thread = 1; thread < std::max(threads, 1); ++thread) {
    team_->workers.emplace_back([team = team_.get(), thread] { team->work(thread); });
  }
}

ThreadPool::~ThreadPool() {
  team_->stop = true;
  {
    std::lock_guard lock(team_->mutex);
    team_->round.fetch_add(1);
  }
  team_->wake.notify_all();
  for (auto& worker : team_->workers) worker.join();
}

int ThreadPool::threads() const {
  return static_cast<int>(team_->workers.size()) + 1;
}

void ThreadPool::split(std::int64_t count, const std::function<void(std::int64_t, std::int64_t, int)>& body) {
  if (count <= 0) return;
  const std::int64_t parts = std::min<std::int64_t>(threads(), count);
  if (parts == 1) return body(0, count, 0);
  team_->run([&](int thread) {
    if (thread < parts) body(count * thread / parts, count * (thread + 1) / parts, thread);
  });
}

void ThreadPool::each(std::int64_t count, const std::function<void(std::int64_t, int)>& body) {
  if (count <= 0) return;
  if (threads() == 1 || count == 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  team_->run([&](int thread) {
    for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(index, thread);
  });
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace essh
