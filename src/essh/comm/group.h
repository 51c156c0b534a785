#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace essh::comm {

// A collective in progress. The data must stay alive and untouched until wait() returns.
class Request {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
    virtual bool done() const = 0;
    // Returns once the data is no longer accessed; the group is unusable afterwards.
    virtual void abandon() noexcept = 0;
  };

  Request() = default;  // complete
  explicit Request(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept;
  // Waits; during stack unwinding, abandons the group instead.
  ~Request();

  // Throws the error of the collective. A second call does nothing.
  void wait();
  bool done() const { return work_ == nullptr || work_->done(); }

 private:
  void release() noexcept;
  std::unique_ptr<Work> work_;
};

// An array split into one contiguous shard per rank: shard r is [bounds[r], bounds[r + 1]) and may be empty; the first
// bound is 0, the last is the length of the array.
using Bounds = std::span<const std::size_t>;
// Shards whose lengths differ by at most 1.
std::vector<std::size_t> even_bounds(std::size_t count, int ranks);
// The shards of [begin, end) of the array, relative to begin: the owners within one bucket.
std::vector<std::size_t> slice_bounds(Bounds bounds, std::size_t begin, std::size_t end);

// A group of ranks (processes). All ranks call the same collectives with the same sizes in the same order, each rank
// from one thread at a time.
//
// Every sum is ((x0 + x1) + x2) + ... in rank order. It has the same bits in every run, on every rank, and for any
// split into shards and buckets.
//
// Errors: a collective throws ErrorKind::Device if communication fails or a rank exceeds the timeout; every later
// collective throws the same. The group is then unusable: let the error reach main, whose RankGuard ends all ranks.
class Group {
 public:
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Closes the group, or abandons it during stack unwinding.
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Asynchronous collectives; they run one after the other in the order of their start.
  virtual Request start_all_reduce_sum(std::span<float> data) = 0;
  // Reduce-scatter: leaves the sum in this rank's shard; the other shards keep their values.
  virtual Request start_reduce_scatter_sum(std::span<float> data, Bounds bounds) = 0;
  // All-gather: copies every shard from its owner.
  virtual Request start_all_gather(std::span<float> data, Bounds bounds) = 0;

  void all_reduce_sum(std::span<float> data) { start_all_reduce_sum(data).wait(); }
  void reduce_scatter_sum(std::span<float> data, Bounds bounds) { start_reduce_scatter_sum(data, bounds).wait(); }
  void all_gather(std::span<float> data, Bounds bounds) { start_all_gather(data, bounds).wait(); }
  virtual void all_gather(std::span<std::byte> data, Bounds bounds) = 0;
  virtual void all_reduce_sum(std::span<double> data) = 0;
  virtual std::int64_t all_reduce_sum(std::int64_t value) = 0;
  // NaN if any rank passes NaN.
  virtual double all_reduce_max(double value) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;

  // The last collective; later failures affect only this rank.
  virtual void close() = 0;
  // Prints the message and ends all ranks at once; `code` becomes the exit code of the launcher.
  [[noreturn]] virtual void abort_all(std::string_view message, int code) = 0;

 protected:
  Group(int rank, int size) : rank_(rank), size_(size) {}

 private:
  int rank_;
  int size_;
};

struct GroupOptions {
  // How long a collective waits without receiving data. Must exceed the longest work of a single rank.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

// The group of this process: all ranks that mpirun started, connected by MPI. Without mpirun, this process alone; MPI
// is then not initialised. At most one group of several ranks per process.
std::unique_ptr<Group> make_group(const GroupOptions& options = {});
std::unique_ptr<Group> make_single_group();

// Local rank of this process on its machine, from the launcher; 0 without a launcher.
int local_rank();

// Held by main: an error of one rank then ends the others instead of leaving them waiting:
//
//   RankGuard ranks;
//   try {
//     return ranks.leave(run(argc, argv));
//   } catch (const Error& error) {
//     print(error);
//     return ranks.leave(exit_code(error.kind()));
//   }
class RankGuard {
 public:
  RankGuard() = default;
  RankGuard(const RankGuard&) = delete;
  RankGuard& operator=(const RankGuard&) = delete;
  ~RankGuard();

  // Returns `code` unless this process left a group of several ranks without closing it: then says so on standard error
  // and ends all ranks with `code` (that of ErrorKind::Internal instead of 0).
  int leave(int code);

 private:
  bool left_ = false;
};

}  // namespace essh::comm
