#pragma once
#include <functional>
#include <map>
#include <memory>

#include "essh/device/memory.h"

struct CUstream_st;
struct CUgraphExec_st;

namespace essh::cuda {

class Profile;

// Kernels run asynchronously on one GPU, in launch order.
class Stream {
 public:
  explicit Stream(int device = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Makes this stream's GPU the current device of the calling thread.
  void activate() const;
  CUstream_st* handle() const { return handle_; }
  int multiprocessors() const { return multiprocessors_; }
  int architecture() const { return architecture_; }  // 90 for sm_90
  // Whether programmatic dependent launch works: sm_90+ and native code for this GPU.
  bool early_launches() const { return early_launches_; }
  // "NVIDIA H200 (sm_90, CUDA 13.0)", the key of autotuned algorithms.
  const std::string& description() const { return description_; }
  // Scratch memory of kernels. Memory that one kernel releases may be reused by the next, since kernels run in order.
  Arena& scratch() { return scratch_; }

  // Copies between host and device or on the device, in order with the kernels. Host memory may be reused on return.
  void copy(void* to, const void* from, std::size_t bytes);
  // Waits until all launched work has finished; throws its errors.
  void wait();

  // Autotuned algorithms and launch parameters by name. The last bits of results depend on the algorithms: to get the
  // same bits in another process, save them and restore them before the first launch.
  std::map<std::string, std::string>& choices() { return choices_; }
  // Whether launch parameters are autotuned (kernels/cuda/tuned_launch.h); they do not change results.
  bool tunes_launches() const { return tunes_launches_; }
  void set_tunes_launches(bool tunes) { tunes_launches_ = tunes; }
  // Whether products of few rows run as a kernel of our own (kernels/cuda/few_row_product.h) where there is one; false
  // leaves them to cuBLASLt.
  bool own_products() const { return own_products_; }
  void set_own_products(bool own) { own_products_ = own; }

  // If set, times every launch; owned by the caller.
  Profile* profile() const { return profile_; }
  void set_profile(Profile* profile) { profile_ = profile; }

  // Objects with the lifetime of the stream, created on first use: library handles, autotuned algorithms.
  template <class T>
  T& attachment() {
    static const char key = 0;
    auto& place = attached(&key);
    if (!place) place = std::make_shared<T>(*this);
    return *std::static_pointer_cast<T>(place);
  }

 private:
  struct Staging;
  std::shared_ptr<void>& attached(const void* key);

  CUstream_st* handle_ = nullptr;
  int device_;
  int multiprocessors_ = 0, architecture_ = 0;
  bool early_launches_ = false, tunes_launches_ = true, own_products_ = true;
  std::string description_;
  Arena scratch_;
  Profile* profile_ = nullptr;
  std::unique_ptr<Staging> staging_;
  std::map<std::string, std::string> choices_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> attachments_;
};

// Scratch that is released at the end of the scope.
class Scratch {
 public:
  explicit Scratch(Stream& stream) : arena_(stream.scratch()), mark_(arena_.mark()) {}
  ~Scratch() { arena_.release(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  T* take(Index count) {
    return arena_.vector<T>(count).data;
  }

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

// A CUDA graph: launches recorded once and replayed with the same operands.
class Graph {
 public:
  Graph() = default;
  // Calls body() and records its launches on `stream` without executing them. All memory must have been allocated
  // before.
  Graph(Stream& stream, const std::function<void()>& body);
  ~Graph();
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  bool empty() const { return graph_ == nullptr; }
  void replay(Stream& stream) const;

 private:
  CUgraphExec_st* graph_ = nullptr;
};

// Number of GPUs that this process can use; 0 without a driver.
int device_count();
// Names of the GPUs with memory and architecture, in words.
std::vector<std::string> device_names();

// Memory of the current GPU.
struct DeviceMemory {
  std::size_t free = 0, total = 0;
};
DeviceMemory device_memory();
// Allocates. Returns null when the GPU has no room left; throws any other error.
void* try_allocate(std::size_t bytes, const char* purpose);
void release(void* memory) noexcept;
// Sets all bits; waits.
void fill_memory(void* memory, std::size_t bytes);
// Throws OutOfMemory with the request, its purpose and the free memory.
[[noreturn]] void fail_for_memory(std::size_t bytes, const char* purpose);

}  // namespace essh::cuda
