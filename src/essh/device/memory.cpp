#include "essh/device/memory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "essh/base/units.h"
#if ESSH_WITH_CUDA
#include "essh/device/cuda/stream.h"
#endif

namespace essh {
namespace {
constexpr std::size_t kAlignment = 256;
// Blocks are never given back, so large ones waste less at their ends; a GPU has room for that.
constexpr std::size_t kArenaBlock = std::size_t{32} << 20;
constexpr std::size_t kCudaArenaBlock = std::size_t{256} << 20;

struct Held {
  std::atomic<std::size_t> now = 0, most = 0;

  void add(std::size_t bytes) {
    const std::size_t held = now += bytes;
    std::size_t known = most;
    while (held > known && !most.compare_exchange_weak(known, held)) {
    }
  }
};
Held& held_on(Device device) {
  static Held cpu, cuda;
  return device == Device::Cuda ? cuda : cpu;
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
}  // namespace

std::size_t peak_bytes(Device device) {
  return held_on(device).most;
}

Buffer::Buffer(Device device, std::size_t bytes, const char* purpose) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  if (device == Device::Cuda) {
#if ESSH_WITH_CUDA
    data_ = cuda::allocate(round_up(bytes), purpose);
    held_on(device).add(bytes);
    return;
#else
    fail(ErrorKind::Unsupported, "{}: this build has no CUDA memory", purpose);
#endif
  }
  data_ = std::aligned_alloc(kAlignment, round_up(bytes));
  if (data_ == nullptr) {
    fail(ErrorKind::OutOfMemory, "cannot allocate {} for {}; use a smaller batch, context or capacity",
         format_bytes(static_cast<double>(bytes)), purpose);
  }
  held_on(device).add(bytes);
}

Buffer::~Buffer() {
  held_on(device_).now -= bytes_;
#if ESSH_WITH_CUDA
  if (device_ == Device::Cuda) {
    cuda::release(data_);
    return;
  }
#endif
  std::free(data_);
}

void* Arena::allocate(std::size_t bytes) {
  bytes = std::max(round_up(bytes), kAlignment);
  while (at_.block < blocks_.size() && at_.used + bytes > blocks_[at_.block].memory.bytes()) {
    ++at_.block;
    at_.used = 0;
  }
  if (at_.block == blocks_.size()) {
    blocks_.push_back(
        {Buffer(device_, std::max(bytes, device_ == Device::Cuda ? kCudaArenaBlock : kArenaBlock), "activations"), 0});
    at_.used = 0;
  }
  void* place = blocks_[at_.block].memory.as<std::byte>() + at_.used;
  at_.used += bytes;
  blocks_[at_.block].touched = std::max(blocks_[at_.block].touched, at_.used);
  return place;
}

std::size_t Arena::touched() const {
  std::size_t total = 0;
  for (const auto& block : blocks_) total += block.touched;
  return total;
}

std::size_t Arena::capacity() const {
  std::size_t total = 0;
  for (const auto& block : blocks_) total += block.memory.bytes();
  return total;
}

}  // namespace essh
