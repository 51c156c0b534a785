#pragma once
#include <functional>
#include <map>
#include <memory>

#include "essh/device/memory.h"

struct CUstream_st;
struct CUgraphExec_st;

namespace essh::cuda {

class Profile;

// Kernels run on one GPU in the order of their launch, while the caller goes on.
class Stream {
 public:
  explicit Stream(int device = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Makes this stream's GPU the current one of the calling thread.
  void activate() const;
  CUstream_st* handle() const { return handle_; }
  int multiprocessors() const { return multiprocessors_; }
  // Whether a kernel may be placed before the one before it has run out: the device can, and has code made for it.
  bool early_launches() const { return early_launches_; }
  // "NVIDIA H200 (sm_90, CUDA 13.0)", what tuned choices depend on.
  const std::string& description() const { return description_; }
  // Memory of the kernels now being launched. What one gives back the next may take: both run in order.
  Arena& scratch() { return scratch_; }

  // Between host and device or on the device, in order with the kernels. Host memory is free for reuse on return.
  void copy(void* to, const void* from, std::size_t bytes);
  // Returns when everything launched so far has run; reports what went wrong in it.
  void wait();

  // What was tuned on this device, by name. Results may depend on it in their last bits: whoever wants the same bits in
  // another process keeps it and gives it back before the first launch.
  std::map<std::string, std::string>& choices() { return choices_; }

  // Times every launch while there is one; owned by the caller.
  Profile* profile() const { return profile_; }
  void set_profile(Profile* profile) { profile_ = profile; }

  // Things that live as long as the stream, made on first use: handles of libraries, tuned choices.
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
  int multiprocessors_ = 0;
  bool early_launches_ = false;
  std::string description_;
  Arena scratch_;
  Profile* profile_ = nullptr;
  std::unique_ptr<Staging> staging_;
  std::map<std::string, std::string> choices_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> attachments_;
};

// Scratch that is given back at the end of the scope.
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

// Launches recorded once and replayed with one call: the same operands, whatever they hold by then.
class Graph {
 public:
  Graph() = default;
  // Runs body(), whose launches on `stream` are recorded instead of run. All memory must have been taken before.
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

// GPUs that this process can use; 0 where there is no driver.
int device_count();
// Names of the GPUs, their memory and architecture, for people.
std::vector<std::string> device_names();

// Memory of the current GPU.
struct DeviceMemory {
  std::size_t free = 0, total = 0;
};
DeviceMemory device_memory();
// Takes some. Throws OutOfMemory with what was wanted, for what, and what is free.
void* allocate(std::size_t bytes, const char* purpose);
void release(void* memory) noexcept;
// That OutOfMemory.
[[noreturn]] void fail_for_memory(std::size_t bytes, const char* purpose);

}  // namespace essh::cuda
