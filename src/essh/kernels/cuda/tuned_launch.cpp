#include "essh/kernels/cuda/tuned_launch.h"

#include <fmt/ranges.h>

#include "essh/device/cuda/check.h"

namespace essh::cuda {
namespace {

// GPU time between start() and milliseconds().
class Stopwatch {
 public:
  explicit Stopwatch(Stream& stream) : stream_(stream) {
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  void start() { check(cudaEventRecord(start_, stream_.handle()), "cudaEventRecord"); }
  float milliseconds() {
    check(cudaEventRecord(end_, stream_.handle()), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "a trial launch");
    float time = 0;
    check(cudaEventElapsedTime(&time, start_, end_), "cudaEventElapsedTime");
    return time;
  }

 private:
  Stream& stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

// Trials do not count in a profile.
class WithoutProfile {
 public:
  explicit WithoutProfile(Stream& stream) : stream_(stream), profile_(stream.profile()) { stream.set_profile(nullptr); }
  ~WithoutProfile() { stream_.set_profile(profile_); }
  WithoutProfile(const WithoutProfile&) = delete;
  WithoutProfile& operator=(const WithoutProfile&) = delete;

 private:
  Stream& stream_;
  Profile* profile_;
};

bool is_recording(const Stream& stream) {
  cudaStreamCaptureStatus status{};
  check(cudaStreamIsCapturing(stream.handle(), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Index tuned_parameter(Stream& stream, const char* kernel, std::span<const Index> sizes,
                      std::span<const Index> candidates, std::span<const Written> results,
                      const std::function<void(Index)>& launch) {
  if (!stream.tunes_launches()) return candidates[0];
  const auto name = fmt::format("{} {}", kernel, fmt::join(sizes, "x"));
  if (const auto stored = stored_choice(stream.choices(), name, candidates)) return *stored;
  if (is_recording(stream)) return candidates[0];
  const WithoutProfile unprofiled(stream);
  Stopwatch stopwatch(stream);
  return tuned_choice(stream.choices(), name, candidates, [&](Index candidate) {
    stopwatch.start();
    launch(candidate);
    const double time = stopwatch.milliseconds();
    return Trial{fingerprint(stream, results), time};
  });
}

}  // namespace essh::cuda
