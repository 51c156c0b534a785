#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <variant>

#include "essh/device/cpu/stream.h"
#include "essh/device/memory.h"
#if ESSH_WITH_CUDA
#include "essh/device/cuda/stream.h"
#else
namespace essh::cuda {
class Stream;
}
#endif

namespace essh {
// Whether this build has CUDA; templates omit GPU-only code otherwise.
#if ESSH_WITH_CUDA
inline constexpr bool kWithCuda = true;
#else
inline constexpr bool kWithCuda = false;
#endif
}  // namespace essh

namespace essh {

// Number types per device: double (the reference) on the CPU, bf16 on CUDA, float on both.
namespace detail {
template <class Kernel, class T>
struct Uses : std::false_type {};
template <template <class...> class Kernel, class... Types, class T>
struct Uses<Kernel<Types...>, T> : std::bool_constant<(std::is_same_v<Types, T> || ...)> {};
}  // namespace detail

// Where kernels run: one of the devices of this build. launch(stream, Kernel{...}) calls the kernel's run() for that
// device; a missing run() is a link error.
class Stream {
 public:
  explicit Stream(std::unique_ptr<cpu::Stream> stream) : device_(std::move(stream)) {}
#if ESSH_WITH_CUDA
  explicit Stream(std::unique_ptr<cuda::Stream> stream) : device_(std::move(stream)) {}
#endif

  Device device() const {
    return device_.index() == 0 ? Device::Cpu : Device::Cuda;
  }

  template <class Kernel>
  void launch(const Kernel& kernel) {
    if (auto* cpu = std::get_if<std::unique_ptr<cpu::Stream>>(&device_)) {
      if constexpr (detail::Uses<Kernel, BFloat16>::value)
        fail(ErrorKind::Unsupported, "bf16 arithmetic runs on CUDA only; choose float32");
      else
        run(**cpu, kernel);
    }
#if ESSH_WITH_CUDA
    if (auto* cuda = std::get_if<std::unique_ptr<cuda::Stream>>(&device_)) {
      if constexpr (detail::Uses<Kernel, double>::value)
        fail(ErrorKind::Unsupported, "float64 arithmetic runs on the CPU only");
      else
        run(**cuda, kernel);
    }
#endif
  }

  // Copies between host and device memory or within one, in order with the kernels. Host memory has been read or
  // written on return.
  void copy(void* to, const void* from, std::size_t bytes);
  // Waits until all launched work has finished.
  void wait();

  // "NVIDIA H200 (sm_90, CUDA 13.0)" or "CPU, 2 threads".
  std::string description();
  // Free memory of the GPU relative to all of it; 1 on the CPU.
  double free_memory_share();
  // Autotuned algorithms and launch parameters by name (cuda::Stream); empty on the CPU.
  std::map<std::string, std::string>& choices();
  // Whether launch parameters are autotuned; false on the CPU.
  bool tunes_launches();
  void set_tunes_launches(bool tunes);
  // On a GPU, multiplies few rows with a kernel of our own instead of cuBLASLt (cuda::Stream::own_products).
  void set_own_products(bool own);

  // Whether launches can be recorded as a CUDA graph: not on the CPU, and not while each is profiled.
  bool records();

  // For use from several threads: a thread holds this lock while it launches, and the stream's GPU is its current
  // device.
  std::unique_lock<std::mutex> acquire();

  // The stream of one device, for device-specific calls; null for the other device.
  cpu::Stream* cpu() {
    return device_.index() == 0 ? std::get<0>(device_).get() : nullptr;
  }
  cuda::Stream* cuda();

 private:
  std::map<std::string, std::string> nothing_;
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
#if ESSH_WITH_CUDA
  std::variant<std::unique_ptr<cpu::Stream>, std::unique_ptr<cuda::Stream>> device_;
#else
  std::variant<std::unique_ptr<cpu::Stream>> device_;
#endif
};

template <class Kernel>
void launch(Stream& stream, const Kernel& kernel) {
  stream.launch(kernel);
}

// Launches that repeat with the same operands. On CUDA they run twice, are then recorded as a CUDA graph and replayed;
// on the CPU, and while they are profiled, they simply run.
class Recording {
 public:
  // The first executions allocate memory and autotune.
  static constexpr int kEager = 2;

  template <class Body>
  void run(Stream& stream, const Body& body) {
    if (!stream.records())
      body();
    else if (graph_)
      replay(stream);
    else if (++runs_ > kEager)
      record(stream, body);
    else
      body();
  }

 private:
  void replay(Stream& stream);
  void record(Stream& stream, const std::function<void()>& body);

  std::shared_ptr<void> graph_;
  int runs_ = 0;
};

// GPU time by kernel of all launches in its scope; empty on the CPU.
class ProfiledScope {
 public:
  struct Line {
    std::string name;
    int calls;
    double milliseconds;
  };
  explicit ProfiledScope(Stream& stream);
  ~ProfiledScope();
  ProfiledScope(const ProfiledScope&) = delete;
  ProfiledScope& operator=(const ProfiledScope&) = delete;
  // Longest first.
  std::vector<Line> lines();

 private:
  Stream& stream_;
  std::shared_ptr<void> profile_;
};

// Copies elements from the host to a device view of the same size, and back.
template <class T>
void upload(Stream& stream, std::span<const std::type_identity_t<T>> from, Vector<T> to) {
  ESSH_ASSERT(static_cast<Index>(from.size()) == to.size);
  stream.copy(to.data, from.data(), from.size_bytes());
}
template <class T>
void download(Stream& stream, Vector<T> from, std::span<std::remove_const_t<T>> to) {
  ESSH_ASSERT(static_cast<Index>(to.size()) == from.size);
  stream.copy(to.data(), from.data, to.size_bytes());
}

inline Stream cpu_stream(int threads = available_cores()) {
  return Stream(std::make_unique<cpu::Stream>(threads));
}

// "cpu", "cuda" or "cuda:1"; "auto" takes a GPU if there is one. A device that this build or machine lacks is an error
// with the reason.
struct DeviceChoice {
  Device device = Device::Cpu;
  int index = 0;
};
DeviceChoice parse_device(std::string_view name);
Stream open_stream(DeviceChoice choice, int threads = available_cores());
// GPUs of this machine, in words; empty in a build without CUDA.
std::vector<std::string> gpu_names();

}  // namespace essh
