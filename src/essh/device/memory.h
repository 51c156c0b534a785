#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "essh/tensor/matrix.h"

namespace essh {

namespace cuda {
class Mapping;
}

enum class Device { Cpu, Cuda };

// Peak memory of this process's buffers on a device.
std::size_t peak_bytes(Device device);
// Use of memory at the peak by purpose, largest first.
struct MemoryUse {
  std::string purpose;
  std::size_t bytes = 0;
};
std::vector<MemoryUse> peak_memory(Device device);
// Bytes held now.
std::vector<MemoryUse> held_memory(Device device);

// Bytes owned on one device, aligned to 256. `purpose`, a literal, appears in out-of-memory messages and in
// peak_memory().
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device device, std::size_t bytes, const char* purpose);
  // A buffer of at least `bytes` that grow() enlarges in place. Returns an empty buffer if the device cannot grow in
  // place: CPUs, and GPUs whose driver cannot map memory.
  static Buffer growing(Device device, std::size_t bytes, const char* purpose);
  // Returns whether the buffer now has `bytes`.
  bool grow(std::size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(purpose_, other.purpose_);
    std::swap(mapping_, other.mapping_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Device device_ = Device::Cpu;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  const char* purpose_ = "";
  std::shared_ptr<cuda::Mapping> mapping_;
};

// Memory that gives way to more important memory, for as long as this object lives. When an allocation on `device`
// fails, `release` frees what it can and returns whether that was anything; the allocation is then tried again. It is
// called by the allocating thread, one call at a time, and allocates no buffer itself.
class Reclaimer {
 public:
  Reclaimer(Device device, std::function<bool()> release);
  ~Reclaimer();
  Reclaimer(const Reclaimer&) = delete;
  Reclaimer& operator=(const Reclaimer&) = delete;

 private:
  friend class Buffer;
  // Whether one of the reclaimers of a device has freed something.
  static bool reclaim(Device device);

  Device device_;
  std::function<bool()> release_;
};

// `size` elements owned on one device, uninitialised.
template <class T>
class Array {
 public:
  Array() = default;
  Array(Device device, Index size, const char* purpose)
      : buffer_(device, static_cast<std::size_t>(size) * sizeof(T), purpose), size_(size) {}

  T* data() const { return buffer_.as<T>(); }
  Index size() const { return size_; }
  std::size_t bytes() const { return buffer_.bytes(); }
  Vector<T> view() const { return {data(), size_}; }
  Vector<T> view(Index first, Index count) const { return {data() + first, count}; }

 private:
  Buffer buffer_;
  Index size_ = 0;
};

// Bump allocator for scratch and activations of one pass; memory is released to a mark. The arena grows and keeps its
// memory, so later passes of the same size allocate nothing.
class Arena {
 public:
  explicit Arena(Device device, const char* purpose = "activations") : device_(device), purpose_(purpose) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised.
  template <class T>
  Matrix<T> matrix(Index rows, Index cols) {
    return dense(static_cast<T*>(allocate(static_cast<std::size_t>(rows * cols) * sizeof(T))), rows, cols);
  }
  template <class T>
  Vector<T> vector(Index size) {
    return {static_cast<T*>(allocate(static_cast<std::size_t>(size) * sizeof(T))), size};
  }

  struct Mark {
    std::size_t block = 0;
    std::size_t used = 0;
  };
  Mark mark() const { return at_; }
  // Releases everything allocated since the mark.
  void release(Mark mark) { at_ = mark; }
  void release() { at_ = {}; }
  std::size_t capacity() const;
  // Most bytes ever in use: the pages that the operating system has had to provide.
  std::size_t touched() const;

 private:
  void* allocate(std::size_t bytes);

  Device device_;
  const char* purpose_;
  struct Block {
    Buffer memory;
    std::size_t touched = 0;
  };
  std::vector<Block> blocks_;
  Mark at_;
};

}  // namespace essh
