#pragma once
#include <memory>
#include <variant>

#include "essh/device/cpu/stream.h"
#include "essh/device/memory.h"

namespace essh {

namespace cuda {
class Stream;
}

// Where kernels run: one of the devices of this build. launch(stream, Kernel{...}) calls the kernel's run() for that
// device; a missing one is a link error that names it.
class Stream {
 public:
  explicit Stream(std::unique_ptr<cpu::Stream> stream) : device_(std::move(stream)) {}

  Device device() const { return Device::Cpu; }

  template <class Kernel>
  void launch(const Kernel& kernel) {
    std::visit([&](auto& stream) { run(*stream, kernel); }, device_);
  }

 private:
  std::variant<std::unique_ptr<cpu::Stream>> device_;
};

template <class Kernel>
void launch(Stream& stream, const Kernel& kernel) {
  stream.launch(kernel);
}

inline Stream cpu_stream(int threads = available_cores()) {
  return Stream(std::make_unique<cpu::Stream>(threads));
}

}  // namespace essh
