#include "essh/device/cuda/stream.h"

#include <algorithm>
#include <cstring>

#include "essh/base/units.h"
#include "essh/device/cuda/check.h"

namespace essh::cuda {
namespace {

bool is_host(const void* pointer) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  return attributes.type != cudaMemoryTypeDevice;
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  const auto kind = status == cudaErrorMemoryAllocation ? ErrorKind::OutOfMemory : ErrorKind::Device;
  fail(kind, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// Pinned memory for small asynchronous copies to the device: a ring of slots, each reusable once its copy has finished.
struct Stream::Staging {
  static constexpr std::size_t kSlot = std::size_t{1} << 20;
  static constexpr std::size_t kSlots = 8;

  Staging() {
    check(cudaMallocHost(&memory, kSlot * kSlots), "pinned staging memory");
    for (auto& event : done) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~Staging() {
    for (auto event : done) cudaEventDestroy(event);
    cudaFreeHost(memory);
  }
  void copy_in(cudaStream_t stream, void* to, const void* from, std::size_t bytes) {
    check(cudaEventSynchronize(done[next]), "staging");
    void* slot = static_cast<std::byte*>(memory) + next * kSlot;
    std::memcpy(slot, from, bytes);
    check(cudaMemcpyAsync(to, slot, bytes, cudaMemcpyHostToDevice, stream), "copy to the device");
    check(cudaEventRecord(done[next], stream), "cudaEventRecord");
    next = (next + 1) % kSlots;
  }

  void* memory = nullptr;
  cudaEvent_t done[kSlots] = {};
  std::size_t next = 0;
};

Stream::Stream(int device) : device_(device), scratch_(Device::Cuda, "kernels at work") {
  check(cudaSetDevice(device), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "cudaStreamCreate");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  multiprocessors_ = properties.multiProcessorCount;
  architecture_ = properties.major * 10 + properties.minor;
  // Code JIT-compiled from an older architecture does not wait for the previous kernel.
  constexpr int kArchitectures[] = {ESSH_CUDA_ARCHITECTURES};
  early_launches_ = properties.major >= 9 && std::any_of(std::begin(kArchitectures), std::end(kArchitectures),
                                                         [&](int sm) { return sm / 10 == properties.major; });
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  description_ = fmt::format("{} (sm_{}{}, CUDA {}.{})", properties.name, properties.major, properties.minor,
                             runtime / 1000, runtime % 1000 / 10);
  staging_ = std::make_unique<Staging>();
}

Stream::~Stream() {
  cudaStreamSynchronize(handle_);
  attachments_.clear();
  cudaStreamDestroy(handle_);
}

void Stream::activate() const {
  check(cudaSetDevice(device_), "cudaSetDevice");
}

void Stream::copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (bytes <= Staging::kSlot && is_host(from)) return staging_->copy_in(handle_, to, from, bytes);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_), "copy");
  if (is_host(to) || is_host(from)) wait();
}

void Stream::wait() {
  check(cudaStreamSynchronize(handle_), "a kernel launched before");
}

std::shared_ptr<void>& Stream::attached(const void* key) {
  for (auto& [known, value] : attachments_) {
    if (known == key) return value;
  }
  return attachments_.emplace_back(key, nullptr).second;
}

Graph::Graph(Stream& stream, const std::function<void()>& body) {
  check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), "graph capture");
  cudaGraph_t recorded = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream.handle(), &recorded);
    if (recorded) cudaGraphDestroy(recorded);
    throw;
  }
  check(cudaStreamEndCapture(stream.handle(), &recorded), "graph capture");
  const auto status = cudaGraphInstantiate(&graph_, recorded, 0);
  cudaGraphDestroy(recorded);
  check(status, "graph instantiation");
}

Graph::~Graph() {
  if (graph_) cudaGraphExecDestroy(graph_);
}

void Graph::replay(Stream& stream) const {
  check(cudaGraphLaunch(graph_, stream.handle()), "graph launch");
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (int device = 0; device < device_count(); ++device) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    names.push_back(fmt::format("{}, {} of memory, sm_{}{}", properties.name,
                                format_bytes(static_cast<double>(properties.totalGlobalMem)), properties.major,
                                properties.minor));
  }
  return names;
}

DeviceMemory device_memory() {
  DeviceMemory memory;
  check(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
  return memory;
}

void* try_allocate(std::size_t bytes, const char* purpose) {
  void* memory = nullptr;
  const auto status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, purpose);
  return memory;
}

void fail_for_memory(std::size_t bytes, const char* purpose) {
  cudaGetLastError();
  const auto memory = device_memory();
  fail(ErrorKind::OutOfMemory,
       "the GPU has {} free of {}, {} for {} does not fit; use a smaller batch, context or capacity",
       format_bytes(static_cast<double>(memory.free)), format_bytes(static_cast<double>(memory.total)),
       format_bytes(static_cast<double>(bytes)), purpose);
}

void fill_memory(void* memory, std::size_t bytes) {
  check(cudaMemset(memory, 0xff, bytes), "filling memory");
  check(cudaDeviceSynchronize(), "filling memory");
}

void release(void* memory) noexcept {
  cudaFree(memory);
}

}  // namespace essh::cuda
