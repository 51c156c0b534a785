#pragma once
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace essh {

// Items are produced one after the other, processed by several threads, and consumed in order. At most `in_flight`
// items exist; they are reused.
template <class Item>
class OrderedPipeline {
 public:
  OrderedPipeline(int workers, std::size_t in_flight) : workers_(workers), slots_(in_flight) {}

  // `produce` fills an item on its own thread and returns false at the end; `process` runs on any worker, `consume` on
  // the calling thread. An exception of `produce` or `process` is rethrown here after all earlier items were consumed.
  void run(const std::function<bool(Item&)>& produce, const std::function<void(Item&)>& process,
           const std::function<void(Item&)>& consume) {
    std::vector<std::thread> threads;
    try {
      threads.emplace_back([&] { produce_all(produce); });
      for (int i = 0; i < workers_; ++i) threads.emplace_back([&] { process_all(process); });
      consume_all(consume);
    } catch (...) {
      stop_and_join(threads);
      throw;
    }
    stop_and_join(threads);
  }

 private:
  enum class State { Empty, Made, Processed };
  struct Slot {
    Item item;
    State state = State::Empty;
    std::exception_ptr error;
  };

  void produce_all(const std::function<bool(Item&)>& produce) {
    for (std::size_t index = 0;; ++index) {
      auto& slot = slots_[index % slots_.size()];
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || slot.state == State::Empty; });
      if (stopping_) return;
      lock.unlock();
      bool more = false;
      try {
        more = produce(slot.item);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      if (more || slot.error) {
        slot.state = slot.error ? State::Processed : State::Made;
        made_ = index + 1;
      }
      ended_ = !more;
      changed_.notify_all();
      if (ended_) return;
    }
  }

  void process_all(const std::function<void(Item&)>& process) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || ended_ || taken_ < made_; });
      if (stopping_ || taken_ == made_) return;
      auto& slot = slots_[taken_++ % slots_.size()];
      if (slot.state == State::Processed) continue;
      lock.unlock();
      try {
        process(slot.item);
      } catch (...) {
        slot.error = std::current_exception();
      }
      lock.lock();
      slot.state = State::Processed;
      changed_.notify_all();
    }
  }

  void consume_all(const std::function<void(Item&)>& consume) {
    for (std::size_t index = 0;; ++index) {
      auto& slot = slots_[index % slots_.size()];
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return slot.state == State::Processed || (ended_ && index == made_); });
      if (slot.state != State::Processed) return;
      lock.unlock();
      if (slot.error) std::rethrow_exception(slot.error);
      consume(slot.item);
      lock.lock();
      slot.state = State::Empty;
      changed_.notify_all();
    }
  }

  void stop_and_join(std::vector<std::thread>& threads) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads) thread.join();
  }

  int workers_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t made_ = 0;
  std::size_t taken_ = 0;
  bool ended_ = false;
  bool stopping_ = false;
};

}  // namespace essh
