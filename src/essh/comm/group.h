#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace essh::comm {

// A collective under way. The data must stay alive and untouched until wait() returns.
class Request {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    virtual void wait() = 0;
    virtual bool done() const = 0;
    // Returns once the data is no longer touched; the group is of no use afterwards.
    virtual void abandon() noexcept = 0;
  };

  Request() = default;  // complete
  explicit Request(std::unique_ptr<Work> work) : work_(std::move(work)) {}
  Request(Request&&) noexcept = default;
  Request& operator=(Request&& other) noexcept;
  // Waits; while an exception is passing, abandons the group instead.
  ~Request();

  // Throws what the collective failed with. Waiting again does nothing.
  void wait();
  bool done() const { return work_ == nullptr || work_->done(); }

 private:
  void release() noexcept;
  std::unique_ptr<Work> work_;
};

// An array cut into one contiguous part per rank: part r is [bounds[r], bounds[r + 1]), parts may be empty, the first
// bound is 0 and the last the length of the array.
using Bounds = std::span<const std::size_t>;
// Parts whose lengths differ by at most 1.
std::vector<std::size_t> even_bounds(std::size_t count, int ranks);
// The parts of the slice [begin, end) of the array, counted from begin: who owns what of one bucket.
std::vector<std::size_t> slice_bounds(Bounds bounds, std::size_t begin, std::size_t end);

// Ranks (processes) that work on one thing. All ranks call the same collectives with the same sizes in the same order,
// each rank from one thread at a time.
//
// Every sum is ((x0 + x1) + x2) + ... over the ranks in order, so that it is the same bits in every run, on every rank,
// and however the array is cut into parts and buckets.
//
// Errors: a collective throws ErrorKind::Device when the communication fails or a rank lets it wait longer than the
// timeout; every later one throws the same. The group is then lost: let the error reach main, whose RankGuard ends all
// ranks.
class Group {
 public:
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Closes the group, or abandons it while an exception is passing.
  virtual ~Group() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Started here and run beside the caller's work, one after the other in the order of their start.
  virtual Request start_all_reduce_sum(std::span<float> data) = 0;
  // Leaves the sum in this rank's part; the other parts keep what they held.
  virtual Request start_reduce_scatter_sum(std::span<float> data, Bounds bounds) = 0;
  // Takes every part from the rank that owns it.
  virtual Request start_all_gather(std::span<float> data, Bounds bounds) = 0;

  void all_reduce_sum(std::span<float> data) { start_all_reduce_sum(data).wait(); }
  void reduce_scatter_sum(std::span<float> data, Bounds bounds) { start_reduce_scatter_sum(data, bounds).wait(); }
  void all_gather(std::span<float> data, Bounds bounds) { start_all_gather(data, bounds).wait(); }
  virtual void all_gather(std::span<std::byte> data, Bounds bounds) = 0;
  virtual void all_reduce_sum(std::span<double> data) = 0;
  virtual std::int64_t all_reduce_sum(std::int64_t value) = 0;
  // NaN when any rank gives NaN.
  virtual double all_reduce_max(double value) = 0;
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  virtual void barrier() = 0;

  // A collective, the last one: from here on an error of one rank is no matter of the others.
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
  // The longest that a collective waits without anything arriving. Longer than the slowest thing that one rank does
  // alone.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

// The group of this process: all ranks that mpirun started, by MPI; otherwise this process alone, and MPI is never
// initialised. At most one group of several ranks per process.
std::unique_ptr<Group> make_group(const GroupOptions& options = {});
std::unique_ptr<Group> make_single_group();

// Which of the ranks of this machine this process is, as the launcher tells; 0 without one.
int local_rank();

// Held by main, so that an error of one rank ends the others instead of leaving them to wait for it:
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
