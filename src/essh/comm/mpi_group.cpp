#include "essh/comm/mpi_group.h"

#include "essh/base/error.h"

#if ESSH_HAVE_MPI
#include <fmt/ranges.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "essh/base/fnv.h"
#include "essh/base/log.h"
#include "essh/comm/collectives.h"

namespace essh::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void check(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorKind::Device, "{}: {}; see the messages of the other ranks", what, std::string_view(text, length));
}

// MPI, and the thread that makes every MPI call, from MPI_Init to MPI_Finalize or MPI_Abort. The thread never blocks
// inside MPI, so that data moves while the caller computes and a wait can end by timeout or abort.
class MpiThread final : public Transport {
 public:
  explicit MpiThread(milliseconds timeout) : timeout_(timeout) {
    std::promise<void> ready;
    std::future<void> initialised = ready.get_future();
    thread_ = std::thread([this, done = std::move(ready)]() mutable { run(std::move(done)); });
    try {
      initialised.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Collectives& collectives() { return collectives_; }

  // Runs `body` on the thread after everything submitted before. `name` says what is done to how many elements and
  // appears in errors. Messages match only between ranks with the same name and `bounds`.
  std::future<void> submit(std::string name, Bounds bounds, std::function<void()> body) {
    const std::uint64_t agreed = fnv1a(std::as_bytes(bounds), fnv1a(name));
    std::packaged_task<void()> task([this, agreed, name = std::move(name), body = std::move(body)]() mutable {
      run_collective(agreed, std::move(name), body);
    });
    std::future<void> result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
    return result;
  }

  // Collectives in progress and later ones fail; afterwards no caller's memory is touched.
  void abandon() noexcept { abandoned_ = true; }

  // Finalises MPI after a last collective of all ranks.
  void close() {
    submit("closing the group", {}, [this] { collectives_.barrier(); }).get();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  [[noreturn]] void abort(int code) {
    std::fflush(stdout);
    {
      const std::lock_guard lock(mutex_);
      abort_code_ = code;
    }
    wake_.notify_one();
    // MPI_Abort ends this process too. If it does not, the launcher ends the others when this process exits.
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(code);
  }

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override {
    requests_.clear();
    peers_.clear();
    // Receives first, so that arriving data finds its buffer.
    for (const Incoming& message : incoming) {
      if (message.bytes.empty()) continue;
      ESSH_ASSERT(message.bytes.size() <= kLargestMessage);
      check(MPI_Irecv(message.bytes.data(), static_cast<int>(message.bytes.size()), MPI_BYTE, message.from, tag_,
                      MPI_COMM_WORLD, &requests_.emplace_back()),
            name_);
      peers_.push_back(message.from);
    }
    for (const Outgoing& message : outgoing) {
      if (message.bytes.empty()) continue;
      ESSH_ASSERT(message.bytes.size() <= kLargestMessage);
      check(MPI_Isend(message.bytes.data(), static_cast<int>(message.bytes.size()), MPI_BYTE, message.to, tag_,
                      MPI_COMM_WORLD, &requests_.emplace_back()),
            name_);
      peers_.push_back(message.to);
    }
    finish_requests();
  }

 private:
  void run(std::promise<void> ready) {
    try {
      initialise();
    } catch (...) {
      ready.set_exception(std::current_exception());
      return;
    }
    ready.set_value();
    while (std::optional<std::packaged_task<void()>> task = next_task()) (*task)();
    if (abort_code_ >= 0) {
      MPI_Abort(MPI_COMM_WORLD, abort_code_);
    } else {
      MPI_Finalize();
    }
  }

  void initialise() {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "starting MPI");
    if (provided < MPI_THREAD_FUNNELED) fail(ErrorKind::Unsupported, "this MPI does not allow programs with threads");
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "starting MPI");
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "starting MPI");
    check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "starting MPI");
    void* largest_tag = nullptr;
    int known = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &known), "starting MPI");
    if (known != 0) largest_tag_ = *static_cast<const int*>(largest_tag);
  }

  // Empty when the thread must end.
  std::optional<std::packaged_task<void()>> next_task() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, milliseconds(10), [this] { return stop_ || abort_code_ >= 0 || !tasks_.empty(); })) {
      // A send is complete once MPI has the data; delivery still needs MPI calls.
      int waiting = 0;
      if (usable()) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &waiting, MPI_STATUS_IGNORE);
    }
    if (abort_code_ >= 0 || tasks_.empty()) return std::nullopt;
    std::packaged_task<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  bool usable() const { return failure_.empty() && !abandoned_; }

  void run_collective(std::uint64_t agreed, std::string name, const std::function<void()>& body) {
    if (!failure_.empty()) throw Error(ErrorKind::Device, failure_);
    if (abandoned_) fail_abandoned(name);
    // The tag is a hash of the collective: ranks that call different collectives or sizes time out, naming it,
    // instead of mixing up their data.
    const std::array<std::uint64_t, 2> what{agreed, sequence_++};
    tag_ = static_cast<int>(fnv1a(std::as_bytes(std::span(what))) % (static_cast<std::uint64_t>(largest_tag_) + 1));
    name_ = std::move(name);
    try {
      body();
    } catch (const std::exception& error) {
      // MPI may still hold requests on the caller's memory; it touches none without another MPI call.
      failure_ = error.what();
      throw;
    }
  }

  void finish_requests() {
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    std::size_t open = requests_.size();
    Clock::time_point last = Clock::now();
    while (open > 0) {
      if (abandoned_ || abort_code_ >= 0) fail_abandoned(name_);
      int finished = 0;
      const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &finished, indices_.data(),
                                    statuses_.data());
      if (code != MPI_ERR_IN_STATUS) check(code, name_);
      for (int i = 0; code == MPI_ERR_IN_STATUS && i < finished; ++i) check(statuses_[i].MPI_ERROR, name_);
      open -= static_cast<std::size_t>(finished);
      const Clock::time_point now = Clock::now();
      if (finished > 0) {
        last = now;
      } else if (now - last > timeout_) {
        fail_by_timeout();
      } else {
        pause(now - last);
      }
    }
  }

  // Replies mostly come at once, and large messages progress inside MPI_Testsome; but a rank that waits for a slower
  // one yields the processor.
  static void pause(Clock::duration waited) {
    using std::chrono::microseconds;
    if (waited < microseconds(100)) return;
    if (waited < milliseconds(2)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(microseconds(waited < milliseconds(50) ? 50 : 500));
    }
  }

  [[noreturn]] static void fail_abandoned(const std::string& name) {
    fail(ErrorKind::Device, "{}: given up after an error of this rank", name);
  }

  [[noreturn]] void fail_by_timeout() {
    std::vector<int> silent;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) silent.push_back(peers_[i]);
    }
    std::sort(silent.begin(), silent.end());
    silent.erase(std::unique(silent.begin(), silent.end()), silent.end());
    fail(ErrorKind::Device,
         "{}: rank {} of {} has waited {:.3g} s for rank {}; see what keeps it, or whether it calls something else; a "
         "longer timeout can be set",
         name_, rank_, size_, std::chrono::duration<double>(timeout_).count(), fmt::join(silent, ", "));
  }

  const milliseconds timeout_;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<bool> abandoned_ = false;
  std::atomic<int> abort_code_ = -1;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool stop_ = false;

  // Used by the thread only:
  Collectives collectives_{*this};
  std::string name_;     // collective in progress
  std::string failure_;  // first error
  int tag_ = 0;
  int largest_tag_ = 32767;  // the standard's minimum
  std::uint64_t sequence_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;

  std::thread thread_;
};

class MpiWork final : public Request::Work {
 public:
  MpiWork(MpiThread& mpi, std::future<void> result) : mpi_(mpi), result_(std::move(result)) {}
  void wait() override { result_.get(); }
  bool done() const override { return result_.wait_for(milliseconds(0)) == std::future_status::ready; }
  void abandon() noexcept override {
    mpi_.abandon();
    result_.wait();
  }

 private:
  MpiThread& mpi_;
  std::future<void> result_;
};

// MPI can be initialised once per process. This object outlives its group, which may end by an exception while the
// other ranks still have to be told.
std::atomic<bool> initialised = false;
std::atomic<MpiThread*> open_mpi = nullptr;

class MpiGroup final : public Group {
 public:
  explicit MpiGroup(MpiThread& mpi) : Group(mpi.rank(), mpi.size()), mpi_(mpi) {}

  ~MpiGroup() override {
    if (closed_) return;
    if (std::uncaught_exceptions() > 0) {
      mpi_.abandon();
      return;
    }
    try {
      close();
    } catch (const std::exception& error) {
      log::warn("{}", error.what());
    }
  }

  Request start_all_reduce_sum(std::span<float> data) override {
    return start(fmt::format("all_reduce_sum of {} floats", data.size()), {},
                 [this, data] { mpi_.collectives().all_reduce_sum(data); });
  }
  Request start_reduce_scatter_sum(std::span<float> data, Bounds bounds) override {
    return start(fmt::format("reduce_scatter_sum of {} floats", data.size()), bounds,
                 [this, data, parts = std::vector(bounds.begin(), bounds.end())] {
                   mpi_.collectives().reduce_scatter_sum(data, parts);
                 });
  }
  Request start_all_gather(std::span<float> data, Bounds bounds) override {
    return start(fmt::format("all_gather of {} floats", data.size()), bounds,
                 [this, data, parts = std::vector(bounds.begin(), bounds.end())] {
                   mpi_.collectives().all_gather(data, parts);
                 });
  }
  void all_gather(std::span<std::byte> data, Bounds bounds) override {
    call(fmt::format("all_gather of {} bytes", data.size()), bounds,
         [&] { mpi_.collectives().all_gather(data, bounds); });
  }
  void all_reduce_sum(std::span<double> data) override {
    call(fmt::format("all_reduce_sum of {} doubles", data.size()), {},
         [&] { mpi_.collectives().all_reduce_sum(data); });
  }
  std::int64_t all_reduce_sum(std::int64_t value) override {
    call("all_reduce_sum of an integer", {}, [&] { value = mpi_.collectives().all_reduce_sum(value); });
    return value;
  }
  double all_reduce_max(double value) override {
    call("all_reduce_max", {}, [&] { value = mpi_.collectives().all_reduce_max(value); });
    return value;
  }
  void broadcast(std::span<std::byte> data, int root) override {
    call(fmt::format("broadcast of {} bytes from rank {}", data.size(), root), {},
         [&] { mpi_.collectives().broadcast(data, root); });
  }
  void barrier() override {
    call("barrier", {}, [&] { mpi_.collectives().barrier(); });
  }

  void close() override {
    if (closed_) return;
    mpi_.close();
    closed_ = true;
    delete open_mpi.exchange(nullptr);
  }

  void abort_all(std::string_view message, int code) override {
    fmt::print(stderr, "essh: rank {} of {}: {}\n", rank(), size(), message);
    mpi_.abort(code);
  }

 private:
  Request start(std::string name, Bounds bounds, std::function<void()> body) {
    return Request(std::make_unique<MpiWork>(mpi_, submit(std::move(name), bounds, std::move(body))));
  }
  void call(std::string name, Bounds bounds, std::function<void()> body) {
    submit(std::move(name), bounds, std::move(body)).get();
  }
  std::future<void> submit(std::string name, Bounds bounds, std::function<void()> body) {
    if (closed_) fail(ErrorKind::Internal, "{}: the group of ranks is closed", name);
    return mpi_.submit(std::move(name), bounds, std::move(body));
  }

  MpiThread& mpi_;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(const GroupOptions& options, int launched) {
  if (initialised.exchange(true)) fail(ErrorKind::Internal, "this process has already joined its group of ranks");
  auto mpi = std::make_unique<MpiThread>(options.timeout);
  const int size = mpi->size();
  open_mpi = mpi.get();
  auto group = std::make_unique<MpiGroup>(*mpi.release());
  if (launched != 0 && launched != size) {
    group->close();
    fail(
        ErrorKind::Usage,
        "the launcher started {} ranks but MPI sees {}: start them with the mpirun of the MPI that essh was built with",
        launched, size);
  }
  return group;
}

void abort_open_mpi_group(int code) {
  MpiThread* const mpi = open_mpi;
  if (mpi == nullptr) return;
  fmt::print(stderr, "essh: rank {} of {} failed: ending all ranks with exit code {}\n", mpi->rank(), mpi->size(),
             code);
  mpi->abort(code);
}

}  // namespace essh::comm

#else

namespace essh::comm {

std::unique_ptr<Group> make_mpi_group(const GroupOptions&, int) {
  fail(ErrorKind::Unsupported,
       "started as one of several ranks, but this build has no MPI: install libopenmpi-dev and configure the build "
       "again");
}

void abort_open_mpi_group(int) {}

}  // namespace essh::comm

#endif
