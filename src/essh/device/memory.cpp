#include "essh/device/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "essh/base/units.h"
#if ESSH_WITH_CUDA
#include "essh/device/cuda/mapping.h"
#include "essh/device/cuda/stream.h"
#endif

namespace essh {
namespace {
constexpr std::size_t kAlignment = 256;
// Block size of an arena that cannot grow in place. Large blocks waste fewer tails; on a CPU an untouched tail costs
// nothing.
constexpr std::size_t kArenaBlock = std::size_t{32} << 20;
constexpr std::size_t kCudaArenaBlock = std::size_t{256} << 20;

// Bytes held by one device's buffers, by purpose: now and at the peak.
class Ledger {
 public:
  void add(const char* purpose, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    now_[purpose] += bytes;
    total_ += bytes;
    if (total_ > most_) {
      most_ = total_;
      at_most_ = now_;
    }
  }
  void remove(const char* purpose, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    now_[purpose] -= bytes;
    total_ -= bytes;
  }
  std::size_t most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }
  std::vector<MemoryUse> now() const {
    const std::lock_guard lock(mutex_);
    return largest_first(now_);
  }
  std::vector<MemoryUse> at_most() const {
    const std::lock_guard lock(mutex_);
    return largest_first(at_most_);
  }

 private:
  using Purposes = std::map<std::string_view, std::size_t>;
  static std::vector<MemoryUse> largest_first(const Purposes& purposes) {
    std::vector<MemoryUse> uses;
    for (const auto& [purpose, bytes] : purposes) {
      if (bytes > 0) uses.push_back({std::string(purpose), bytes});
    }
    std::stable_sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    return uses;
  }

  mutable std::mutex mutex_;
  Purposes now_, at_most_;
  std::size_t total_ = 0, most_ = 0;
};
// Never destroyed: static buffers may be released later.
Ledger& ledger_of(Device device) {
  static Ledger* const ledgers = new Ledger[2];
  return ledgers[device == Device::Cuda ? 1 : 0];
}

// The reclaimers of all devices, oldest first.
struct Reclaimers {
  std::mutex mutex;
  std::vector<Reclaimer*> list;
};
Reclaimers& reclaimers() {
  static Reclaimers* const all = new Reclaimers;
  return *all;
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// With ESSH_FILL_MEMORY=1 new memory is all ones, NaN as a number of any width: a value that is read before it is
// written shows. On the CPU only the beginning of a large buffer, which may reserve more than the machine has.
void fill_new(Device device, std::byte* data, std::size_t bytes) {
  static const bool fills = [] {
    const char* const text = std::getenv("ESSH_FILL_MEMORY");
    return text && std::string_view(text) == "1";
  }();
  if (!fills) return;
#if ESSH_WITH_CUDA
  if (device == Device::Cuda) return cuda::fill_memory(data, bytes);
#endif
  constexpr std::size_t kMostFilled = std::size_t{4} << 20;
  if (device == Device::Cpu) std::memset(data, 0xff, std::min(bytes, kMostFilled));
}
}  // namespace

Reclaimer::Reclaimer(Device device, std::function<bool()> release) : device_(device), release_(std::move(release)) {
  const std::lock_guard lock(reclaimers().mutex);
  reclaimers().list.push_back(this);
}

Reclaimer::~Reclaimer() {
  const std::lock_guard lock(reclaimers().mutex);
  std::erase(reclaimers().list, this);
}

bool Reclaimer::reclaim(Device device) {
  const std::lock_guard lock(reclaimers().mutex);
  return std::ranges::any_of(reclaimers().list, [&](auto* one) { return one->device_ == device && one->release_(); });
}

std::size_t peak_bytes(Device device) {
  return ledger_of(device).most();
}

std::vector<MemoryUse> peak_memory(Device device) {
  return ledger_of(device).at_most();
}

std::vector<MemoryUse> held_memory(Device device) {
  return ledger_of(device).now();
}

Buffer::Buffer(Device device, std::size_t bytes, const char* purpose)
    : device_(device), bytes_(bytes), purpose_(purpose) {
  if (bytes == 0) return;
  if (device == Device::Cuda) {
#if ESSH_WITH_CUDA
    while (!(data_ = cuda::try_allocate(round_up(bytes), purpose))) {
      if (!Reclaimer::reclaim(device)) cuda::fail_for_memory(bytes, purpose);
    }
    fill_new(device, as<std::byte>(), bytes);
    ledger_of(device).add(purpose, bytes);
    return;
#else
    fail(ErrorKind::Unsupported, "{}: this build has no CUDA memory", purpose);
#endif
  }
  while (!(data_ = std::aligned_alloc(kAlignment, round_up(bytes)))) {
    if (Reclaimer::reclaim(device)) continue;
    fail(ErrorKind::OutOfMemory, "cannot allocate {} for {}; use a smaller batch, context or capacity",
         format_bytes(static_cast<double>(bytes)), purpose);
  }
  fill_new(device, as<std::byte>(), bytes);
  ledger_of(device).add(purpose, bytes);
}

Buffer Buffer::growing([[maybe_unused]] Device device, [[maybe_unused]] std::size_t bytes,
                       [[maybe_unused]] const char* purpose) {
  Buffer buffer;
#if ESSH_WITH_CUDA
  if (device == Device::Cuda) {
    buffer.device_ = device;
    buffer.purpose_ = purpose;
    buffer.mapping_ = cuda::Mapping::reserve();
    buffer.grow(bytes);
  }
#endif
  return buffer;
}

bool Buffer::grow(std::size_t bytes) {
  if (bytes <= bytes_) return true;
#if ESSH_WITH_CUDA
  if (mapping_) {
    for (bool grown = false; !grown;) {
      try {
        mapping_->grow(round_up(bytes), purpose_);
        grown = true;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::OutOfMemory || !Reclaimer::reclaim(device_)) throw;
      }
    }
    const std::size_t before = bytes_;
    data_ = mapping_->data();
    bytes_ = mapping_->bytes();
    fill_new(device_, as<std::byte>() + before, bytes_ - before);
    ledger_of(device_).add(purpose_, bytes_ - before);
    return true;
  }
#endif
  return false;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  ledger_of(device_).remove(purpose_, bytes_);
  if (mapping_) return;
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
  while (at_.block < blocks_.size() && !blocks_[at_.block].memory.grow(at_.used + bytes)) {
    ++at_.block;
    at_.used = 0;
  }
  if (at_.block == blocks_.size()) {
    auto memory = Buffer::growing(device_, bytes, purpose_);
    if (memory.bytes() == 0)
      memory = Buffer(device_, std::max(bytes, device_ == Device::Cuda ? kCudaArenaBlock : kArenaBlock), purpose_);
    blocks_.push_back({std::move(memory), 0});
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
