#pragma once
#include <cstddef>
#include <memory>

namespace essh::cuda {

// Device memory that grows in place: an address range as large as the GPU's memory, mapped from its start.
class Mapping {
 public:
  // On the current device; nullptr if its driver cannot map memory.
  static std::unique_ptr<Mapping> reserve();
  // Waits for the device: kernels may still be using the memory.
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t bytes() const { return bytes_; }
  // Maps at least `bytes`. Throws OutOfMemory with the request, its purpose and the free memory.
  void grow(std::size_t bytes, const char* purpose);

 private:
  Mapping(int device, std::size_t granularity) : device_(device), granularity_(granularity) {}

  int device_;
  std::size_t granularity_;
  unsigned long long address_ = 0;
  std::size_t reserved_ = 0, bytes_ = 0;
};

}  // namespace essh::cuda
