#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "essh/comm/collectives.h"

// Ranks that are threads of one process.
namespace essh::comm::testing {

// Messages between the ranks.
class Mailboxes {
 public:
  void put(int from, int to, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to}].emplace_back(bytes.begin(), bytes.end());
    arrived_.notify_all();
  }
  std::vector<std::byte> take(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<std::byte>>& box = boxes_[{from, to}];
    arrived_.wait(lock, [&] { return !box.empty() || lost_; });
    if (box.empty()) throw std::runtime_error("another rank failed");
    std::vector<std::byte> message = std::move(box.front());
    box.pop_front();
    return message;
  }
  // Wakes all ranks that wait for messages which will not come.
  void lose() {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    arrived_.notify_all();
  }
  bool empty() const {
    return std::all_of(boxes_.begin(), boxes_.end(), [](const auto& box) { return box.second.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> boxes_;
  bool lost_ = false;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(Mailboxes& mail, int rank, int size) : mail_(mail), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override {
    for (const Outgoing& message : outgoing) {
      if (!message.bytes.empty()) mail_.put(rank_, message.to, message.bytes);
      sent += message.bytes.size();
    }
    for (const Incoming& message : incoming) {
      if (message.bytes.empty()) continue;
      const std::vector<std::byte> bytes = mail_.take(message.from, rank_);
      ASSERT_EQ(bytes.size(), message.bytes.size());
      std::copy(bytes.begin(), bytes.end(), message.bytes.begin());
    }
  }
  std::size_t sent = 0;

 private:
  Mailboxes& mail_;
  int rank_;
  int size_;
};

// Runs body(collectives, rank, transport) on as many threads as ranks.
inline void on_ranks(int ranks, const std::function<void(Collectives&, int, ThreadTransport&)>& body) {
  Mailboxes mail;
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ThreadTransport transport(mail, rank, ranks);
        Collectives collectives(transport);
        body(collectives, rank, transport);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        mail.lose();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  EXPECT_TRUE(mail.empty());
}

// A group of such ranks. Collectives complete when they are started.
class ThreadGroup final : public Group {
 public:
  explicit ThreadGroup(ThreadTransport& transport)
      : Group(transport.rank(), transport.size()), collectives_(transport) {}

  Request start_all_reduce_sum(std::span<float> data) override {
    collectives_.all_reduce_sum(data);
    return {};
  }
  Request start_reduce_scatter_sum(std::span<float> data, Bounds bounds) override {
    collectives_.reduce_scatter_sum(data, bounds);
    return {};
  }
  Request start_all_gather(std::span<float> data, Bounds bounds) override {
    collectives_.all_gather(data, bounds);
    return {};
  }
  void all_gather(std::span<std::byte> data, Bounds bounds) override { collectives_.all_gather(data, bounds); }
  void all_reduce_sum(std::span<double> data) override { collectives_.all_reduce_sum(data); }
  std::int64_t all_reduce_sum(std::int64_t value) override { return collectives_.all_reduce_sum(value); }
  double all_reduce_max(double value) override { return collectives_.all_reduce_max(value); }
  void broadcast(std::span<std::byte> data, int root) override { collectives_.broadcast(data, root); }
  void barrier() override { collectives_.barrier(); }
  void close() override {}
  void abort_all(std::string_view, int) override { std::abort(); }

 private:
  Collectives collectives_;
};

// Runs body(group) on as many threads as ranks.
inline void on_groups(int ranks, const std::function<void(Group&)>& body) {
  on_ranks(ranks, [&](Collectives&, int, ThreadTransport& transport) {
    ThreadGroup group(transport);
    body(group);
  });
}

}  // namespace essh::comm::testing
