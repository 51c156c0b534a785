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
// Whether this build has CUDA: templates leave out what only a GPU runs.
#if ESSH_WITH_CUDA
inline constexpr bool kWithCuda = true;
#else
inline constexpr bool kWithCuda = false;
#endif
}  // namespace essh

namespace essh {

// Which number types a device computes in: double on the CPU, the reference; bf16 on CUDA; float on both.
namespace detail {
template <class Kernel, class T>
struct Uses : std::false_type {};
template <template <class...> class Kernel, class... Types, class T>
struct Uses<Kernel<Types...>, T> : std::bool_constant<(std::is_same_v<Types, T> || ...)> {};
}  // namespace detail

// Where kernels run: one of the devices of this build. launch(stream, Kernel{...}) calls the kernel's run() for that
// device; a missing one is a link error that names it.
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

  // Between host and device memory or within one, in order with the kernels; on return host memory is read or written.
  void copy(void* to, const void* from, std::size_t bytes);
  // Returns when everything launched so far has run.
  void wait();

  // "NVIDIA H200 (sm_90, CUDA 13.0)" or "CPU, 2 threads".
  std::string description();
  // What was tuned on this device, by name; see cuda::Stream. Nothing on the CPU.
  std::map<std::string, std::string>& choices();

  // For use from several threads: whoever launches holds it, and its GPU is then the calling thread's.
  std::unique_lock<std::mutex> acquire();

  // The stream of one device, for what only that device has; null on the other.
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

// Launches that are made again and again with the same operands: on CUDA recorded after they have run twice, and
// replayed from then on; on the CPU just run.
class Recording {
 public:
  template <class Body>
  void run(Stream& stream, const Body& body) {
    if (replay(stream)) return;
    if (stream.device() == Device::Cuda && ++runs_ > kEager)
      record(stream, body);
    else
      body();
  }

 private:
  // Memory is taken and products are tuned in runs of their own.
  static constexpr int kEager = 2;
  bool replay(Stream& stream);
  void record(Stream& stream, const std::function<void()>& body);

  std::shared_ptr<void> graph_;
  int runs_ = 0;
};

// GPU time by kernel of what is launched in its scope; nothing on the CPU.
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
  // The longest first.
  std::vector<Line> lines();

 private:
  Stream& stream_;
  std::shared_ptr<void> profile_;
};

// Elements from the host to a device view of the same size, and back.
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

// "cpu", "cuda" or "cuda:1"; "auto" takes a GPU when there is one. Whatever this build or machine has not is refused
// with the reason.
struct DeviceChoice {
  Device device = Device::Cpu;
  int index = 0;
};
DeviceChoice parse_device(std::string_view name);
Stream open_stream(DeviceChoice choice, int threads = available_cores());
// GPUs of this machine, for people; empty in a build without CUDA.
std::vector<std::string> gpu_names();

}  // namespace essh
