#pragma once
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace essh {

// Scratch objects that threads borrow, so that const members are thread-safe. There are at most as many as threads were
// inside at once. A thread gets its previous object if it is free, for a warm cache.
template <class T>
class ScratchPool {
 public:
  class Loan {
   public:
    Loan(ScratchPool& pool, std::unique_ptr<T> item) : pool_(pool), item_(std::move(item)) {}
    ~Loan() { pool_.give_back(std::move(item_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    T& operator*() { return *item_; }
    T* operator->() { return item_.get(); }

   private:
    ScratchPool& pool_;
    std::unique_ptr<T> item_;
  };

  Loan borrow() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto mine = free_.end() - 1;
        for (auto place = free_.begin(); place != free_.end(); ++place) {
          if (place->first == std::this_thread::get_id()) mine = place;
        }
        std::unique_ptr<T> item = std::move(mine->second);
        free_.erase(mine);
        return Loan(*this, std::move(item));
      }
      // Returning an object must not allocate.
      free_.reserve(++made_);
    }
    return Loan(*this, std::make_unique<T>());
  }

 private:
  void give_back(std::unique_ptr<T> item) {
    const std::lock_guard lock(mutex_);
    free_.emplace_back(std::this_thread::get_id(), std::move(item));
  }

  std::mutex mutex_;
  std::vector<std::pair<std::thread::id, std::unique_ptr<T>>> free_;
  std::size_t made_ = 0;
};

}  // namespace essh
