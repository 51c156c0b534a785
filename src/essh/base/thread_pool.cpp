#include "essh/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "essh/base/error.h"

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

// A round of work has one task per thread. A worker takes its own task, which covers the same rows every round unless
// the machine is busy. The caller takes its own first, then those not yet begun, so that it never waits for a worker
// without a core. The result does not depend on who runs a task.
struct ThreadPool::Team {
  struct alignas(64) Worker {
    std::thread thread;
    std::atomic<std::uint64_t> taken{0};  // last round whose task was taken
  };
  // Indices of `each` that nobody has taken, of one thread's range.
  struct alignas(64) Range {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };
  std::vector<Worker> workers;
  std::vector<Range> ranges;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<std::uint64_t> round{0};
  std::atomic<int> running{0};
  std::atomic<bool> stop{false};
  const std::function<void(int)>* task = nullptr;
  std::mutex error_mutex;
  std::exception_ptr error;

  explicit Team(int count) : workers(static_cast<std::size_t>(count)), ranges(workers.size() + 1) {}

  void perform(int thread) {
    try {
      (*task)(thread);
    } catch (...) {
      std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  // A round ends when all its tasks are done, so tasks of earlier rounds are always taken.
  static bool take(Worker& worker, std::uint64_t now) {
    auto last = worker.taken.load(std::memory_order_relaxed);
    return last < now && worker.taken.compare_exchange_strong(last, now, std::memory_order_acq_rel);
  }

  void work(std::size_t index) {
    std::uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && round.load(std::memory_order_acquire) == seen; ++spin) pause_core();
      if (round.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return round.load() != seen; });
      }
      seen = round.load(std::memory_order_acquire);
      if (stop.load()) return;
      if (!take(workers[index], seen)) continue;
      perform(static_cast<int>(index) + 1);
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
    }
  }

  void run(const std::function<void(int)>& body) {
    task = &body;
    error = nullptr;
    running.store(static_cast<int>(workers.size()), std::memory_order_relaxed);
    std::uint64_t now = 0;
    {
      std::lock_guard lock(mutex);
      now = round.fetch_add(1, std::memory_order_release) + 1;
    }
    wake.notify_all();
    perform(0);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (!take(workers[i], now)) continue;
      perform(static_cast<int>(i) + 1);
      running.fetch_sub(1, std::memory_order_acq_rel);
    }
    for (int spin = 0; spin < kSpins && running.load(std::memory_order_acquire) != 0; ++spin) pause_core();
    for (int left; (left = running.load(std::memory_order_acquire)) != 0;)
      running.wait(left, std::memory_order_acquire);
    if (error) std::rethrow_exception(error);
  }

  void end() {
    stop = true;
    {
      std::lock_guard lock(mutex);
      round.fetch_add(1);
    }
    wake.notify_all();
    for (auto& worker : workers) {
      if (worker.thread.joinable()) worker.thread.join();
    }
  }
};

ThreadPool::ThreadPool(int threads) : team_(std::make_unique<Team>(std::max(threads, 1) - 1)) {
  std::size_t started = 0;
  try {
    for (; started < team_->workers.size(); ++started)
      team_->workers[started].thread = std::thread([team = team_.get(), started] { team->work(started); });
  } catch (const std::system_error& error) {
    team_->end();
    fail(ErrorKind::Usage, "the system gives {} threads of {} ({}); use fewer", started + 1, threads, error.what());
  }
}

ThreadPool::~ThreadPool() {
  team_->end();
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
  auto& ranges = team_->ranges;
  const auto size = ranges.size();
  for (std::size_t i = 0; i < size; ++i) {
    const auto at = static_cast<std::int64_t>(i), all = static_cast<std::int64_t>(size);
    ranges[i].next.store(count * at / all, std::memory_order_relaxed);
    ranges[i].end = count * (at + 1) / all;
  }
  team_->run([&](int thread) {
    for (std::size_t i = 0; i < size; ++i) {
      auto& range = ranges[(static_cast<std::size_t>(thread) + i) % size];
      while (range.next.load(std::memory_order_relaxed) < range.end) {
        const auto index = range.next.fetch_add(1, std::memory_order_relaxed);
        if (index < range.end) body(index, thread);
      }
    }
  });
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace essh
